"""The names that a template sees, results that load when they are used, and rendering.

Runs in the worker and inside Spark.
Imported by the pipeline and by `noetl.spark`.
"""
