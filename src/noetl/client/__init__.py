"""The client of NoETL, over HTTP or in this process. The command is built on it.

`rows` has the operations, whose answers are the JSON objects of the HTTP API. `http` calls a
server, `local` calls the services in this process. `noetl.cli` and users import it.
"""
