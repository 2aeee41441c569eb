"""Fail fast: once something is known to be bad, say so at once, until somebody or something says that it is well again.

- `config`: what may be set
- `core`: closed and open, and what leads from one to the other; pure
- `state`: the core with the lock, the clock and the health check it must not know
- `policy`: what the user holds
"""
