"""One module per tool kind, and the registry. A tool gets a rendered call and gives a value, a failure, or what it waits for.

May import `noetl.playbook`, `noetl.results` (the port) and `noetl.model`; is imported by `pipeline` and whoever wires a worker.
"""
