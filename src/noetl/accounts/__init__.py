"""Ports: tokens of callers, sessions of browsers and links that open them, of which only sums are stored; and users.

`port.py` has the contract of tokens, `memory.py` its twin without a database, `postgres.py` the table. `users.py`,
`users_memory.py` and `users_postgres.py` are the same for users.
It runs in servers; `server` and `runtime` may import it.
"""
