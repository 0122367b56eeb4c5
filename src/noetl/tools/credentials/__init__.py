"""Credentials by name, OAuth 2 tokens and secret managers.

Runs in the worker, just before a credential is used.
Imported by tools, the pipeline and the worker.
"""
