"""SQL of a duckdb step reaches the folders that it is allowed, and neither the worker nor NOETL_HOME."""

import json
from typing import Any

import pytest

from tests.e2e.conftest import StackClient

ESCAPES = {
    "environment": "SELECT * FROM read_text('/proc/self/environ')",
    "key file": "SELECT * FROM read_text('{home}/credentials.key')",
    "list of files": "SELECT * FROM glob('{home}/*')",
    "write": "COPY (SELECT 1) TO '{home}/planted.csv'",
    "attach": "ATTACH '{home}/planted.db'",
    "extension": "INSTALL httpfs",
    "community extension": "INSTALL h3 FROM community",
    "configuration": "SET enable_external_access = true",
    "lock": "SET lock_configuration = false",
    "path out of the folder": "SELECT * FROM read_text('./../../../../../../etc/hostname')",
    "variable of the worker": "SELECT * FROM rows",
}


def run_sql(stack: StackClient, tool: dict[str, Any]) -> dict[str, Any]:
    """The execution of the tool and of a step after it."""
    codes = {"ctx.code": "{{ error.code }}", "ctx.message": "{{ error.message }}"}
    arcs = [{"step": "after", "when": "{{ error is defined }}", "set": codes}, {"step": "after"}]
    steps = [
        {"step": "escape", "tool": tool, "next": {"spec": {"mode": "exclusive"}, "arcs": arcs}},
        {"step": "after", "tool": {"kind": "duckdb", "query": "SELECT 1 AS one"}},
    ]
    return stack.run(json.dumps(steps))


@pytest.mark.parametrize("name", ESCAPES)
def test_sql_reaches_nothing_outside_its_folders(stack: StackClient, name: str) -> None:
    query = ESCAPES[name].format(home=stack.noetl.home)
    row = run_sql(stack, {"kind": "duckdb", "query": query})
    assert row["vars"]["code"] == "SQL_ERROR", row
    assert row["status"] == "completed"
    assert not list(stack.noetl.home.glob("planted*"))


def test_query_of_a_transfer_reaches_nothing_outside_its_folders(stack: StackClient) -> None:
    source = {"kind": "duckdb", "query": ESCAPES["environment"]}
    tool = {"kind": "transfer", "source": source, "target": {"kind": "file", "path": "/dev/null"}}
    row = run_sql(stack, tool)
    assert row["vars"]["code"] == "SQL_ERROR", row
