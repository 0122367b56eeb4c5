"""Who calls: tokens of programs, sessions of browsers, and the links that open them.

`authenticator` finds the caller of a request, `service` makes and revokes tokens, `routes` reads
requests, and `views` has the structs of the answers. Runs in the server; `runtime` wires it.
"""
