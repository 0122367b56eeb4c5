"""Where Spark's tasks begin a loop's shards: all that the process which asks for them has to load."""

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

ROWS = pa.schema(
    [
        ("index", pa.int64()),
        ("status", pa.string()),
        ("error", pa.json_()),
        ("ms", pa.int64()),
        ("tries", pa.int64()),
        ("result", pa.json_()),
    ]
)
WITH_PROVENANCE = ROWS.append(pa.field("provenance", pa.json_()))
ANSWER = "shard long, told string"
SELDOM = (50_000, 20, 20)  # that garbage is looked for


def row_schema(work: dict[str, Any]) -> pa.Schema:
    """Of the rows of a loop's items."""
    return WITH_PROVENANCE if work["provenance"] else ROWS


def run(work: dict[str, Any], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`."""
    from noetl.spark.task import shards  # the pipeline and its tools: only tasks need them

    if gc.get_threshold() != SELDOM:  # once in a process, which may have run shards of other loops
        gc.freeze()  # what is loaded stays: looking at it again and again takes a quarter of the time of small items
        gc.set_threshold(*SELDOM)
    yield from shards(work, batches)
