"""The function that Spark's tasks call for the shards of a loop.

The process that submits the tasks imports this module, so it imports little itself.
"""

import gc
from collections.abc import Iterable, Iterator

import pyarrow as pa

from noetl.spark.messages import LoopWork

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
SELDOM = (50_000, 20, 20)  # thresholds of the garbage collector


def row_schema(work: LoopWork) -> pa.Schema:
    """The schema of the rows that a loop writes, one row per item."""
    return WITH_PROVENANCE if work["provenance"] else ROWS


def run(work: LoopWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the shards with these numbers; the function for `mapInArrow`."""
    from noetl.spark.task import shards  # loads the pipeline and its tools, which only tasks need

    # Once per process: Spark reuses the process for shards of other loops.
    if gc.get_threshold() != SELDOM:
        # Loaded modules stay in memory. Without `freeze`, scanning them again and again takes a
        # quarter of the time of small items.
        gc.freeze()
        gc.set_threshold(*SELDOM)
    yield from shards(work, batches)
