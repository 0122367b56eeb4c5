"""Templates, to try them out.

`service` decides and knows nothing of HTTP; `routes` reads requests and answers with the structs of `views`.
Runs in the server. Imported by the server and by commands that open the home of this machine.
"""
