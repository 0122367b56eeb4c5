"""Tenants: made and bounded by administrators of the installation.

`service` decides without HTTP and returns the structs of `views`; `quotas` refuses starts; `routes`
reads requests. Runs in the server. Imported by the server and by commands that open the home of this
machine.
"""
