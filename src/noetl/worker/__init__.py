"""The worker process of the data plane: claims commands, runs them, and reports until acknowledged.

It talks to servers through a `Channel` and to nothing else of the control plane: no engine, no log,
no database. `cli` may import it.
"""
