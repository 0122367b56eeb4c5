"""The fork server: it starts the processes of tools and makes sure that none outlives the worker.

`fork_server` runs in the worker, `fork_server_process` in a process beside it.
Imported by tools and `noetl.spark`.
"""
