"""Cache: an answer that was given before, while it is fresh, and one load at a time when it is not.

- `config`: what may be set
- `core`: what is kept, for how long, and what a lookup decides
- `store`: where entries are
- `keys`: which calls are the same
- `flight`: the loads under way, and those who wait for them
- `state`: the drivers
- `shadow`: the one that only watches
- `policy`: what the user holds
"""
