"""The database: connections, named queries, arrays and migrations.

Runs in every process that opens the database.
Imported by the Postgres adapters of ports and by what wires processes.
"""
