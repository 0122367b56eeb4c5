"""Runs commands: renders inputs, runs a step's tasks with their policies, stores, journals,
reports.

It runs in worker processes and in Spark's tasks, and knows neither server nor log. Journal entries
leave through a callback that returns when they are acknowledged. `worker` and `spark` may import
it, through `execute` and `environment`; it imports `tools`, `playbook`, `results` (the port) and `model`.
"""
