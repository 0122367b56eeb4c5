"""Spark, always by Spark Connect: where its server is and how it is started, the `spark` tool, and what runs in its processes.

Stands beside the worker and above `tools`; only `cli` imports it and gives the tool to workers. Nothing here loads PySpark but
the processes that talk to Spark.
"""
