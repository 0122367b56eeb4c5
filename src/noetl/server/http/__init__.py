"""What all routes share: routing, parameters, bodies, structs, errors, limits and OpenAPI.

Runs in the server.
Imported by routes and by what wires the server.
"""
