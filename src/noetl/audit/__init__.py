"""Port: the audit trail, a chain of entries per tenant that says who changed what.

`port.py` has the contract, `chain.py` the sums that link the entries and the check of them, `memory.py`
the twin without a database, `postgres.py` the table. It runs in servers; `server`, `runtime`, `client`
and `cli` may import it.
"""
