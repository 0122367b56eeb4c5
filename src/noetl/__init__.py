"""NoETL runs playbooks: YAML documents that describe data work as steps, loops, branches and retries.

`docs/architecture.md` explains the packages. The modules here are shared by all of them.
"""
