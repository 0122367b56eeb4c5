"""Who is asking. There is no login yet, so everyone is the local identity.

`routes` reads requests; `views` has the structs of the answers. Runs in the server.
"""
