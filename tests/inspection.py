"""What is looked at in every log that a test leaves behind: its projection is its fold, no row is in an event, and its results
are small.

Rows that test playbooks, the test API and the examples produce have marks in them (`CANARY-…`), which no playbook assigns or
selects as a scalar. Such a mark in an event, a waiting message or a command is a value that should have been a reference.
Commands carry the workload of their execution, which may have marks when its parent has given them to it.

`tests/conftest.py` says which tests are excepted, and judges the sizes once all have run.
"""

import asyncio
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import psycopg

from tests.projection import assert_projection_equals_fold

CANARY = "CANARY-"
LOOKED_AT = {  # place: table, and column as bytes
    "event": ("event", "convert_to(coalesce(result::text, '') || meta::text, 'utf8')"),
    "message": ("inbox", "body"),
    "command": ("command", "body"),
    "journal": ("command", "journal"),
}
MAX_SHOWN = 20  # places
P99 = 1024  # bytes of `event.result`
ENOUGH = 1_000  # results; of fewer a percentile says nothing

sizes: Counter[int] = Counter()  # over all databases of this process
excepted = False  # the test of now corrupts its log


def inspect(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        if connection.execute("select to_regclass('noetl.event')").fetchone() == (None,):
            return
        found = connection.execute(
            "select octet_length(result::text) from noetl.event where result is not null"
        )
        sizes.update(row[0] for row in found)
        assert_no_rows(connection)
        if excepted or connection.execute("select from noetl.event limit 1").fetchone() is None:
            return
    with ThreadPoolExecutor(1) as apart:  # the caller may have a loop running
        apart.submit(asyncio.run, assert_projection_equals_fold(dsn)).result()


def assert_no_rows(connection: psycopg.Connection[Any]) -> None:
    for place, (table, column) in LOOKED_AT.items():
        query = f"select {column} from noetl.{table} where position(%s in {column}) > 0"
        found = [
            row[0].decode(errors="replace") for row in connection.execute(query, [CANARY.encode()])
        ]
        texts = [text for text in found if place != "command" or CANARY in _without_workload(text)]
        shown = "\n".join(
            f"…{text[max(text.index(CANARY) - 300, 0) :][:400]}…" for text in texts[:MAX_SHOWN]
        )
        assert not texts, f"values of rows stand in {place}:\n{shown}"


def _without_workload(body: str) -> str:
    """A command without the workload of its execution."""
    command = json.loads(body)
    command.get("scope", {}).pop("workload", None)
    return json.dumps(command)


def percentile(share: float) -> int:
    """The size that so many of all results do not exceed."""
    ordered = sorted(sizes)
    reached = accumulate(sizes[size] for size in ordered)
    return next(
        (
            size
            for size, count in zip(ordered, reached, strict=True)
            if count >= share * sizes.total()
        ),
        0,
    )
