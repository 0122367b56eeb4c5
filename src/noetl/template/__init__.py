"""The template language: parsing, rendering, and the names that a template sees.

`parsing` makes a `Template`, `rendering` has the one `Renderer`, `scopes` has the names at each place of a playbook.
Pure: runs in servers, workers, Spark and the CLI. Imports only `noetl.model`; all but the ports may import it.
"""
