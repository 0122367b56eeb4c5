"""The pure engine: `evolve` folds a fact into the state, `decide` says what follows, `advance` does both until nothing does.

No I/O, no clock, no randomness; it reads envelopes, never payloads. Imports `noetl.model` and `noetl.playbook` only.
"""
