"""Feature toggle: who gets a feature, decided by rules that can be switched while the service runs.

- `config`: what may be set
- `core`: which rule says no, if any; pure
- `state`: the way a call takes, with or without the feature
- `policy`: what the user holds
"""
