"""What `postgres` and `duckdb` have in common: from a call to its statements."""

from typing import Any

from noetl.model.errors import Failure
from noetl.playbook.sqltext import Dialect
from noetl.tools.port import Call
from noetl.tools.python import source
from noetl.tools.sql import SqlError, Statement, check_transaction, statements

RAW = frozenset({"query"})


async def prepared(call: Call, dialect: Dialect) -> list[Statement] | Failure:
    """Every statement of the task. A query is a template; a script is not: its values come by `params`."""
    params = call.config.get("params") or {}
    try:
        found: list[Statement] = []
        for query in await _queries(call):
            text, marks = query if isinstance(query, tuple) else (query, [])
            found += statements(text, marks, params, dialect)
        if not call.config.get("autocommit"):
            check_transaction(found)
    except _Unavailable as error:
        return error.failure
    except SqlError as error:
        return error.failure
    if not found:
        return Failure(code="SQL_EMPTY", kind="config", message="there is no statement to run")
    return found


class _Unavailable(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


async def _queries(call: Call) -> list[Any]:
    query = call.config.get("query")
    if query is None:
        script = await source(call.config, "query")
        if isinstance(script, Failure):
            raise _Unavailable(script)
        return [script]
    listed = query if isinstance(query, list) else [query]
    if call.rendering is None:
        return listed
    return [await call.rendering.marked(one) for one in listed]
