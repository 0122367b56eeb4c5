"""The `transfer` tool: rows from a source to a target, batch by batch.

Runs in the worker; blocking calls run in threads.
Imported by tools.
"""
