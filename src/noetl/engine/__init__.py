"""The pure engine: `evolve` folds one event, `decide` says what follows, `advance` repeats both.

It runs in the server, once per event, without I/O, clock or randomness; it reads envelopes only.
It imports `noetl.model` and `noetl.playbook`; the server and `spark.jobs` may import it.
"""
