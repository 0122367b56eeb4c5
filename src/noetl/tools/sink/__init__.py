"""The targets of the tool `sink`: a module per kind, and the records that all of them write.

They run in the worker. The tools `sink` and `transfer` import this package; `spark` uses parts of
it.
"""
