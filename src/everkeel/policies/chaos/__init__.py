"""Chaos: faults on purpose, at a rate, by a seed, so that what happened once can happen again.

- `permission`: may there be chaos in this process?
- `tags`: words that calls carry
- `config`: what may be set
- `core`: which call gets which fault, and when it is enough; pure
- `recording`: what was injected, to and from JSON
- `state`: the faults happening
- `policy`: what the user holds
"""
