"""The `http` tool, the demo API that it answers by itself, and the way out to other hosts.

Runs in the worker.
Imported by tools and by the pipeline.
"""
