"""The function that Spark's tasks call for the shards of a loop.

The process that submits the tasks imports this module, so it imports little itself.
"""

import gc
from collections.abc import Iterable, Iterator

import pyarrow as pa

from noetl.spark.messages import LoopWork

ITEM_ROWS = pa.schema(
    [
        ("index", pa.int64()),
        ("status", pa.string()),
        ("error", pa.json_()),
        ("ms", pa.int64()),
        ("tries", pa.int64()),
        ("result", pa.json_()),
    ]
)
ITEM_ROWS_WITH_PROVENANCE = ITEM_ROWS.append(pa.field("provenance", pa.json_()))
REPORT_COLUMNS = "shard long, told string"
TASK_GC_THRESHOLDS = (50_000, 20, 20)  # thresholds of the garbage collector


def choose_row_schema(work: LoopWork) -> pa.Schema:
    """The schema of the rows that a loop writes, one row per item."""
    return ITEM_ROWS_WITH_PROVENANCE if work.provenance else ITEM_ROWS


def run_task(work: LoopWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the shards with these numbers; the function for `mapInArrow`."""
    from noetl.spark.tasks.shard import run_numbered_shards

    # Once per process: Spark reuses the process for shards of other loops.
    if gc.get_threshold() != TASK_GC_THRESHOLDS:
        # Loaded modules stay in memory. Without `freeze`, scanning them again and again takes a
        # quarter of the time of small items.
        gc.freeze()
        gc.set_threshold(*TASK_GC_THRESHOLDS)
    yield from run_numbered_shards(work, batches)
