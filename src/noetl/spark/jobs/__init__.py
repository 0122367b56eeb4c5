"""NoETL's own pipelines: the log exported, verified, rebuilt, counted, asked by SQL, and moved to files when it is old.

What a job does to one execution is a pure function on Arrow tables. It runs on Spark, or in this process when the profile is
`none`, with the same output. These modules may import the engine and the log; `cli` imports them.
"""
