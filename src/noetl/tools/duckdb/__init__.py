"""The `duckdb` tool, and numbers that DuckDB would change in a cast.

Runs in the worker; statements run in threads.
Imported by tools, the pipeline and `noetl.spark`.
"""
