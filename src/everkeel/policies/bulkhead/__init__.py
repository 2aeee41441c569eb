"""Bulkhead: so many at once and no more, so that one slow dependency cannot use up the whole process.

- `config`: what may be set
- `state`: the places
- `pool`: a kind with threads of its own
- `policy`: what the user holds
"""
