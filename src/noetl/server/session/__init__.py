"""Who is asking, and the session of a browser.

`routes` reads requests; `views` has the structs of the answers. Runs in the server.
"""
