"""The shell around the engine: batches of reports and requests, states, and owned shards.

Runs in the server.
Imported by the server only.
"""
