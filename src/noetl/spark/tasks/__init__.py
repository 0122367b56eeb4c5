"""What runs inside Spark's tasks: the data source `noetl` and the items of a loop's shard.

Runs in Spark's Python workers, also on other machines.
Imported by `noetl.spark` only.
"""
