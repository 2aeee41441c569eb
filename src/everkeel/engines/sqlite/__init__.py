"""SQLite: one machine, any number of processes, nothing to install."""
