"""The API without HTTP: one service class per subject.

Every method takes the `Identity` of its caller, and every query is limited to its tenant. The
routes in `server/api` use them in the server process, and so do `cli` commands that work without a
server; these import only the modules they need.
"""
