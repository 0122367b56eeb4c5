"""The tiers of the result store: memory, kv, files, object stores, and caches before them.

Runs in workers and in servers that open results.
Imported by the router, the worker and `noetl.spark`.
"""
