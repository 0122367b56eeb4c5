"""HTTP: one module of routes per subject.

A route reads the request, calls a service and shapes the answer; it decides nothing itself.
Runs in the server process, wired by `server/app.py`. `cli` imports `shapes`, for equal output.
"""
