"""The keychain of a playbook, and the removal of secrets from what leaves a worker.

Runs in the worker and inside Spark.
Imported by the pipeline, the worker and `noetl.spark`.
"""
