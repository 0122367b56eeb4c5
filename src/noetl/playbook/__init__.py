"""The playbook language: YAML text in, one validated `Playbook` out; templates; static analysis.

`dialect` alone knows older spellings; the engine and the workers see only `model.Playbook` and what `plan` makes of it.
May import `noetl.model`; may be imported by everything above it.
"""
