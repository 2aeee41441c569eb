"""Circuit breaker: stop calling what keeps failing, and find out carefully when it is well again.

- `config`: what may be set
- `windows`: what share of recent calls failed
- `core`: closed, open, half open, and what leads from one to the other; pure
- `state`: the core with the lock and the clock it must not know
- `policy`: what the user holds
- `saved`: a circuit's state to and from JSON
"""
