"""Ports: stored playbooks by path, version and content hash; stored credentials, sealed, by name.

`port.py` has both contracts, `memory.py` their twins without a database, `postgres.py` the tables.
It runs in servers; `server` and `cli` may import it.
"""
