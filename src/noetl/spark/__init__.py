"""Spark by Spark Connect: its server, the `spark` tool, the code in Spark's tasks, and `jobs/`.

Only processes that talk to Spark load PySpark; workers start those processes.
It uses `pipeline` and `tools`. Only `cli` imports it, and `cli` gives the tool to workers.
"""
