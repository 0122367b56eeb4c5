"""The `postgres` tool: statements, bulk copies and the types of columns.

Runs in the worker; statements run in threads.
Imported by tools, the pipeline and `noetl.spark`.
"""
