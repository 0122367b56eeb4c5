"""Where the tool `sink` writes: a module per kind of target, and the records they all write. Used by `tools/sink.py`."""
