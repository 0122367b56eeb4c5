"""Jobs over the event log: export, compact, verify, rebuild, stats and SQL queries.

The work on one execution is a pure function on Arrow tables. It runs on Spark, or in the process of
the CLI when the profile is `none`. The jobs may import the engine and the log; `cli` imports them.
"""
