"""One row of a large row set in S3: how long it takes, and how much is read for it.

A row set of one gigabyte (integers, and noise that no encoding makes smaller) is put into an S3 server of the tests' own, then
single rows are read by a worker's reader: the first (nothing is known of the file), others (its footer is known), and one again.
Beside it, in the same run, a bare ranged read of as many bytes by obstore.

    uv run python bench/slices.py [--rows 1000000] [--turns 20] [--json]
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from noetl.model.reference import Reference, make_address
from noetl.results.formats.rowsets import RowSetWriter
from noetl.results.formats.tables import TableOptions
from noetl.results.tiers.objects import ObjectTier
from tests import s3
from tests.integration.test_objects import WatchedBucket
from tests.stores import in_tier, make_cached_tier

PLACE = make_address("7", "result", "step", "key")
SCHEMA = pa.schema([("id", pa.int64()), ("noise", pa.binary())])
AT_ONCE, WIDE = 10_000, 1_000
AIM_MS, AIM_MB = 100, 2
Figures = dict[str, Any]


async def store_rows(watched: WatchedBucket, bucket: str, folder: Path, rows: int) -> Reference:
    store = in_tier(ObjectTier(watched, bucket), folder)
    writer = RowSetWriter(SCHEMA, TableOptions(store.staging))
    for first in range(0, rows, AT_ONCE):
        ids = list(range(first, min(first + AT_ONCE, rows)))
        writer.write(
            pa.RecordBatch.from_arrays([ids, [os.urandom(WIDE) for _ in ids]], schema=SCHEMA)
        )
    table = writer.finish()
    try:
        return await store.put(PLACE, table)
    finally:
        table.close()


async def measure_slices(rows: int, turns: int) -> Figures:
    server, chance = s3.server(), Random(1)
    bucket = server.place()
    watched = WatchedBucket(server.connect_bucket(bucket))
    with tempfile.TemporaryDirectory(prefix="noetl-bench-") as name:
        reference = await store_rows(watched, bucket, Path(name), rows)
        reader = in_tier(
            make_cached_tier(ObjectTier(watched, bucket), Path(name, "cache")), Path(name)
        )

        async def read_row(row: int) -> tuple[float, int]:
            watched.read, begun = 0, time.perf_counter()
            [found] = await reader.read_rows(reference, row, row + 1)
            taken = time.perf_counter() - begun
            assert found["id"] == row
            return taken * 1000, watched.read

        first = await read_row(rows // 2)
        others = [await read_row(chance.randrange(rows)) for _ in range(turns)]
        again = await read_row(rows // 2)
        read = max(size for _, size in others)
        return {
            "gigabytes": round(reference.bytes / 1e9, 3),
            "first_ms": round(first[0], 1),
            "first_mb": round(first[1] / 1e6, 2),
            "other_ms": round(statistics.median(taken for taken, _ in others), 1),
            "other_ms_most": round(max(taken for taken, _ in others), 1),
            "other_mb_most": round(read / 1e6, 2),
            "again_ms": round(again[0], 1),
            "again_mb": round(again[1] / 1e6, 2),
            "bare_ms": round(
                await asyncio.to_thread(read_bare, server.connect_bucket(bucket), read, turns), 1
            ),
        }


def read_bare(store: Any, size: int, turns: int) -> float:
    """Milliseconds that so many bytes of the object take, wherever they are."""
    [found] = [each for batch in store.list() for each in batch if each["size"] > size]
    taken = []
    for turn in range(turns):
        begun = time.perf_counter()
        store.get_range(found["path"], start=turn * size % (found["size"] - size), length=size)
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1000


def print_figures(found: Figures) -> None:
    print(f"one row of {found['gigabytes']} GB in S3:")
    print(
        f"  the first: {found['first_ms']} ms, {found['first_mb']} MB read (with what says where rows are)"
    )
    print(
        f"  any other: {found['other_ms']} ms, at most {found['other_ms_most']} (aim {AIM_MS})",
        end="",
    )
    print(
        f"; {found['other_mb_most']} MB at most (aim {AIM_MB}); bare, so many bytes take {found['bare_ms']} ms"
    )
    print(f"  the first again: {found['again_ms']} ms, {found['again_mb']} MB read")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    found = asyncio.run(measure_slices(options.rows, options.turns))
    if options.json:
        print(json.dumps(found))
    else:
        print_figures(found)


if __name__ == "__main__":
    main()
