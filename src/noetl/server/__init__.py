"""The control plane, which runs in the server process (or inside `noetl run`).

`dispatch` takes reports and requests, decides with the engine and writes one transaction per batch.
`duties` are the background loops, the subjects answer requests, `node` wires one server.
The server opens no data and runs no tool. It imports the engine, the playbook language and the
ports `log`, `leases`, `bus`, `catalog` and `triggers`. Only `cli` imports it.
"""
