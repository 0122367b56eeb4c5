"""The playbook language: reads YAML text and validates it into a `Playbook`.

`dialect` rewrites older spellings; `plan` compiles a `Playbook` for the engine and the workers.
Pure: runs in servers, workers and the CLI. Imports `noetl.template` and `noetl.model`; all but the ports may import it.
"""
