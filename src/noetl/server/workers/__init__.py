"""The worker protocol: exchanges, handing over commands, and which workers are present.

Runs in the server.
Imported by the server only.
"""
