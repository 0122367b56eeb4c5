"""The background loops of a server process: one file per duty, each with a `run_once` method.

`loop` repeats a duty at its interval. `server/node.py` starts them.
"""
