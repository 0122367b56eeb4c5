"""Items of a loop: chunks, collections, batched items, and loops on Spark.

Runs in the worker; `noetl.spark` runs chunks inside Spark.
Imported by the pipeline and by `noetl.spark`.
"""
