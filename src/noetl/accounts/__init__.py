"""Port: tokens of callers, sessions of browsers and links that open them. Only their sums are stored.

`port.py` has the contract, `memory.py` its twin without a database, `postgres.py` the table.
It runs in servers; `server` and `runtime` may import it.
"""
