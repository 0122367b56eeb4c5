"""What is looked at in every log that a test leaves behind: its projection is its fold, and its results are small.

`tests/conftest.py` says which tests are excepted, and judges the sizes once all have run.
"""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import psycopg

from tests.projection import assert_projection_equals_fold

P99 = 2048  # bytes of `event.result`
ENOUGH = 1_000  # results; of fewer a percentile says nothing

sizes: Counter[int] = Counter()  # over all databases of this process
excepted = False  # the test of now corrupts its log


def inspect(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        if connection.execute("select to_regclass('noetl.event')").fetchone() == (None,):
            return
        found = connection.execute("select octet_length(result::text) from noetl.event where result is not null")
        sizes.update(row[0] for row in found)
        if excepted or connection.execute("select from noetl.event limit 1").fetchone() is None:
            return
    with ThreadPoolExecutor(1) as apart:  # the caller may have a loop running
        apart.submit(asyncio.run, assert_projection_equals_fold(dsn)).result()


def percentile(share: float) -> int:
    """The size that so many of all results do not exceed."""
    ordered = sorted(sizes)
    reached = accumulate(sizes[size] for size in ordered)
    return next((size for size, count in zip(ordered, reached, strict=True) if count >= share * sizes.total()), 0)
