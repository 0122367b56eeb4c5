"""Items of loops and data of steps, for people who look into an execution.

`service` decides without HTTP and returns the structs of `views`; `routes` reads requests. `runs`
finds the facts of one run of a step, `scan` walks the parts of a loop's result, `inputs` reads the
items of its collection. Runs in the server. Imported by the server and by commands that open the
home of this machine.
"""
