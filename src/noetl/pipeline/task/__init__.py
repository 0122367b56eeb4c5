"""A step's tasks: tries, policies and pages.

Runs in the worker and inside Spark.
Imported by the pipeline and by `noetl.spark`.
"""
