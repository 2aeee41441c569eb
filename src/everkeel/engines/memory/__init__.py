"""Memory: for tests, and for what may be lost with the process."""
