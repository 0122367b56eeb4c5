"""What all routes share: bodies, errors, limits, dependencies and the shapes of JSON.

Runs in the server.
Imported by routes and by what wires the server.
"""
