"""Port: hints that wake servers and workers. A lost, doubled or late hint costs only latency.

`port.py` is the contract, `memory.py` its twin without a database, `postgres.py` uses
LISTEN/NOTIFY. It runs in servers; `server` and `cli` may import it.
"""
