"""The egress guard: which addresses tools of a worker may connect to.

Runs in the worker. Imported by tools and by the wiring of workers.
"""
