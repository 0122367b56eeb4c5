"""The `python` tool, the pool of its processes, and what runs inside them.

The tool and the pool run in the worker, `child` in processes that the fork server starts.
Imported by tools, the pipeline and `noetl.spark`.
"""
