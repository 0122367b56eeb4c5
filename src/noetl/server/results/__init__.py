"""Results of steps: previews, data, lineage and storage use.

`service` decides without HTTP and returns the structs of `views`; `routes` reads requests.
Runs in the server. Imported by the server and by commands that open the home of this machine.
"""
