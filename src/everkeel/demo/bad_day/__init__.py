"""A payment provider has a bad day, with and without Everkeel: half a minute of `python -m everkeel.demo.bad_day`.

- `provider`: the simulated provider, whose health changes
- `clients`: the same call, bare and guarded
- `ledger`: what became of the calls of one client
- `story`: sends both clients the same traffic
- `screen`: shows it while it happens: redrawn in place in a terminal, lines elsewhere
- `summary`: the table at the end, and one call explained
"""
