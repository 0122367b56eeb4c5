"""The playbook language: reads YAML text, validates it into a `Playbook`, and evaluates templates.

`dialect` rewrites older spellings; `plan` compiles a `Playbook` for the engine and the workers.
Pure: runs in servers, workers and the CLI. Imports only `noetl.model`; all others may import it.
"""
