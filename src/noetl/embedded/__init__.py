"""Finds and starts what NoETL needs on a machine that has nothing: today Postgres. Nothing else knows how.

`ensure(home)` answers with addresses that work, `stop()` ends what this process started. Imports `noetl.model` only;
`cli` imports this.
"""

from noetl.embedded.postgres import Dsns, Embedded, ensure, stop

__all__ = ["Dsns", "Embedded", "ensure", "stop"]
