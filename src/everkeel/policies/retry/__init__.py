"""Retry: try again when trying again can help, and stop when it cannot.

- `config`: what may be set
- `core`: the decision after each attempt, pure
- `budget`: how many retries the traffic as a whole may afford
- `state`: the loop, sync and async, plain and woven
- `record`: the note, the explanation and the events it leaves behind
- `nesting`: whether there is a retry around it
- `attempts`: the retried block, `for attempt in policy.attempts():`
- `policy`: what the user holds
"""
