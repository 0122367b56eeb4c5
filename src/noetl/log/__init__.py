"""Ports over one database: the event log, and all that one transaction must cover with it.

A folder per port: `port` is the contract, `memory` the twin, `postgres` the durable adapter with its
`.sql`. `stores` holds all of them for the wiring; `tables` are the tables of the twins. They run in
the server and in Spark jobs; only `noetl.server`, `noetl.spark.jobs` and `noetl.cli` import them.
They import `noetl.model` only.
"""
