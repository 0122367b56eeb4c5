"""The control plane: takes reports and requests, decides with the engine, writes one transaction, tells who waits.

`dispatch` is the shell around the engine; `duties` are the background loops; `node` wires one process. It opens no data and
runs no tool. Imports the engine, the playbook language and the ports `log`, `leases`, `bus`, `catalog`.
"""
