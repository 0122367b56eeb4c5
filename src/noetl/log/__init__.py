"""Port: the event log with the command queue, the inbox, timers and projections: all that one
transaction must cover.

`port` is the contract, `memory` the twin, `postgres` the durable adapter. It runs in the server and
in Spark jobs; only `noetl.server`, `noetl.spark.jobs` and `noetl.cli` import it. It imports
`noetl.model` only.
"""
