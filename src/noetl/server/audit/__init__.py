"""The audit trail as the server writes and reads it.

`recorder` writes entries of changes, `refusals` those of refused calls, `call_origin` says where a request
comes from, `service` lists entries, `routes` reads requests, and `views` has the structs of the answers.
Runs in the server; `runtime` wires it.
"""
