"""The `spark` tool and Spark loops, as a worker runs them: inputs, outputs, statements, tickets.

Runs in the worker. It starts the client process and never imports PySpark.
Imported by `noetl.spark` and by what wires a worker.
"""
