"""Port: the event log, the command queue, the inbox, timers and projections: everything one transaction must cover.

`port` is the contract, `memory` the twin, `postgres` the real one. Imports `noetl.model` only.
"""
