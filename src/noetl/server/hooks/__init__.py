"""Hooks: calls from outside that start a playbook.

`service` decides and knows nothing of HTTP; `routes` reads requests and shapes answers.
Runs in the server. Imported by the server and by commands that open the home of this machine.
"""
