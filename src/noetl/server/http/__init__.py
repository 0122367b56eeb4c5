"""What all routes share: routing, parameters, bodies, errors, limits and the OpenAPI document.

Runs in the server.
Imported by routes and by what wires the server.
"""
