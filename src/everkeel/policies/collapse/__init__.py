"""Collapse: calls that come within a few milliseconds become one call for all of them.

- `config`: what may be set
- `core`: which argument is collected, and which result is whose
- `batch`: calls on their way together
- `state`: the drivers
- `policy`: what the user holds
"""
