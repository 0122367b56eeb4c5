"""Makes the statements of a call, for `postgres` and `duckdb`."""

from typing import Any

from noetl.model.errors import Failure
from noetl.playbook.sqltext import Dialect
from noetl.tools.port import Call
from noetl.tools.python.tool import read_code
from noetl.tools.sql.statements import SqlError, Statement, check_transaction, parse_statements

RAW_SQL_FIELDS = frozenset({"query"})


async def prepare_statements(call: Call, dialect: Dialect) -> list[Statement] | Failure:
    """Every statement of the task.

    A query is a template. A script is not: its values come from `params`.
    """
    params = call.config.get("params") or {}
    try:
        parsed: list[Statement] = []
        for query in await _render_queries(call):
            if isinstance(query, tuple):
                text, marks = query
            else:
                text, marks = query, []
            parsed += parse_statements(text, marks, params, dialect)
        if not call.config.get("autocommit"):
            check_transaction(parsed)
    except (_ScriptUnavailable, SqlError) as error:
        return error.failure
    if not parsed:
        return Failure(code="SQL_EMPTY", kind="config", message="there is no statement to run")
    return parsed


class _ScriptUnavailable(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


async def _render_queries(call: Call) -> list[Any]:
    """The texts of the queries. A rendered one is a text with its marks."""
    query = call.config.get("query")
    if query is None:
        script = await read_code(call.config, "query")
        if isinstance(script, Failure):
            raise _ScriptUnavailable(script)
        return [script]
    queries = query if isinstance(query, list) else [query]
    if call.rendering is None:
        return queries
    return [await call.rendering.marked(template) for template in queries]
