"""What is looked at in every log that a test leaves behind: its projection is its fold, no row is in an event, and its results
are small.

Rows that test playbooks, the test API and the examples produce have marks in them (`CANARY-…`), in places that no template picks
as a scalar. Such a mark in an event, a waiting message or a command is a row that should have been a reference.

`tests/conftest.py` says which tests are excepted, and judges the sizes once all have run.
"""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import psycopg

from tests.projection import assert_projection_equals_fold

CANARY = "CANARY-"
LOOKED_AT = {
    "event": "coalesce(result::text, '') || meta::text",
    "inbox": "encode(body, 'escape')",
    "command": "encode(body, 'escape') || coalesce(encode(journal, 'escape'), '')",
}
P99 = 1024  # bytes of `event.result`
ENOUGH = 1_000  # results; of fewer a percentile says nothing

sizes: Counter[int] = Counter()  # over all databases of this process
excepted = False  # the test of now corrupts its log


def inspect(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        if connection.execute("select to_regclass('noetl.event')").fetchone() == (None,):
            return
        found = connection.execute("select octet_length(result::text) from noetl.event where result is not null")
        sizes.update(row[0] for row in found)
        assert_no_rows(connection)
        if excepted or connection.execute("select from noetl.event limit 1").fetchone() is None:
            return
    with ThreadPoolExecutor(1) as apart:  # the caller may have a loop running
        apart.submit(asyncio.run, assert_projection_equals_fold(dsn)).result()


def assert_no_rows(connection: psycopg.Connection[Any]) -> None:
    for table, text in LOOKED_AT.items():
        query = f"select {text} from noetl.{table} where {text} like %s limit 1"
        row = connection.execute(query, [f"%{CANARY}%"]).fetchone()
        assert row is None, f"a row stands in noetl.{table}: {row[0][:2_000]}"


def percentile(share: float) -> int:
    """The size that so many of all results do not exceed."""
    ordered = sorted(sizes)
    reached = accumulate(sizes[size] for size in ordered)
    return next((size for size, count in zip(ordered, reached, strict=True) if count >= share * sizes.total()), 0)
