"""What the SQL tools share: values in statements, calls, tables as inputs, blocking calls in threads.

Runs in the worker.
Imported by tools, the pipeline and `noetl.spark`.
"""
