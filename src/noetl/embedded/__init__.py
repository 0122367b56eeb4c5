"""Finds and starts Postgres on a machine without a database. No other package knows how.

`ensure(home)` returns addresses that work; `stop()` ends the servers that this process started.
It runs in the processes of the CLI. It imports only `noetl.model`; `cli` may import it.
"""

from noetl.embedded.postgres import Dsns, EmbeddedPostgres, ensure, stop

__all__ = ["Dsns", "EmbeddedPostgres", "ensure", "stop"]
