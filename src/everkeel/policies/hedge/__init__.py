"""Hedge: a second attempt beside the first when that one takes longer than usual; the first to succeed wins.

- `config`: what may be set
- `latency`: how long calls usually take, learned from traffic
- `timers`: who is due for a second attempt, behind a single timer
- `race`, `threads`: attempts beside each other, as tasks and as threads
- `state`: the drivers
- `policy`: what the user holds
"""
