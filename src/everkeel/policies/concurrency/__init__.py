"""Adaptive concurrency: so many at once as the service can take, found out from how long it takes to answer.

- `config`: what may be set
- `control`: the algorithms; pure: told latencies and overloads, answer how many may run at once
- `priorities`: who is let in when not all can be
- `state`: a bulkhead whose number of places moves
- `ranked`: the same with priorities
- `policy`: what the user holds
"""
