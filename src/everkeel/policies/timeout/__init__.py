"""Timeout: an answer in time, or none.

- `config`: what may be set
- `inflight`: the async calls of one length on one event loop, behind a single timer
- `race`: a body against the clock, for strict timeouts
- `state`: the drivers, async and sync, for calls, blocks and streams
- `policy`: what the user holds
"""
