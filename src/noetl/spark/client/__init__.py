"""The process that talks to Spark Connect: one request of a step each, and the files of its frames.

Runs in processes that are forked from one that has PySpark loaded.
Imported by `noetl.spark` only.
"""
