"""`stats`: durations, failures, retries and result bytes of steps and executions.

A pure function computes the facts of one execution from its events; one query aggregates them.
"""

import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from noetl.model import events as e
from noetl.model.errors import CorruptLog
from noetl.model.ids import SNOWFLAKE_EPOCH_MS, Micros
from noetl.spark.jobs.event_files import stage_events
from noetl.spark.jobs.event_rows import decode_events
from noetl.spark.jobs.execution_map import ExecutionMap
from noetl.spark.jobs.lake import LakeStore
from noetl.spark.jobs.snapshot import open_snapshot

# A row for every ended run of a step, and one without a step for an ended execution.
FACT_SCHEMA = pa.schema(
    [
        ("execution_id", pa.int64()),
        ("path", pa.string()),
        ("step", pa.string()),
        ("status", pa.string()),
        ("micros", pa.int64()),
        ("retries", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
EXECUTION_ID = pc.field("execution_id")
STATS_QUERY = """
select path, step, count(*) as runs, count(*) filter (where status = 'error') as failures, sum(retries)::bigint as retries,
       sum(bytes)::bigint as bytes, quantile_cont(micros, 0.5) / 1e6 as p50, quantile_cont(micros, 0.95) / 1e6 as p95,
       quantile_cont(micros, 0.99) / 1e6 as p99, max(micros) / 1e6 as longest
from read_parquet($file) group by path, step order by path, step nulls first
"""


def compute_stats(
    dsn: str,
    lake: LakeStore,
    runs: ExecutionMap,
    since: Micros,
    until: Micros,
) -> list[dict[str, Any]]:
    """Statistics of the executions that began in [since, until), by their ids. Durations are in
    seconds."""
    with tempfile.TemporaryDirectory(prefix="noetl-stats-") as folder, open_snapshot(dsn) as log:
        work, ids = Path(folder), (find_first_id(since), find_first_id(until))
        files = stage_events(log, lake, work, ids=ids)
        with pq.ParquetWriter(work / "facts.parquet", FACT_SCHEMA) as writer:
            is_in_range = (ids[0] <= EXECUTION_ID) & (
                ids[1] > EXECUTION_ID
            )  # a file may hold other executions
            for found in runs.map_executions(collect_execution_facts, FACT_SCHEMA, files, work):
                writer.write_table(found.filter(is_in_range))
        with duckdb.connect() as connection:
            answer = connection.execute(STATS_QUERY, {"file": str(work / "facts.parquet")})
            names = [column[0] for column in answer.description or ()]
            return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


def find_first_id(at: Micros) -> int:
    """The smallest id that an execution can have if it begins at this time or later."""
    return max(at // 1_000 - SNOWFLAKE_EPOCH_MS, 0) << 22


# ---- the pure part ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Span:
    """A run of a step, or of the whole execution."""

    step: str | None
    began: Micros
    retries: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _ExecutionStory:
    """The state while the events of one execution are read."""

    execution_id: int
    path: str = ""
    whole: _Span = field(default_factory=lambda: _Span(None, 0))
    spans: dict[str, _Span] = field(default_factory=dict)  # by activation
    commands: dict[str, str] = field(default_factory=dict)  # to their activations
    rows: list[dict[str, Any]] = field(default_factory=list)

    def end_span(self, span: _Span, status: str, at: Micros) -> None:
        """Add the row of a span that has ended."""
        row = {
            "execution_id": self.execution_id,
            "path": self.path,
            "step": span.step,
            "status": status,
            "micros": at - span.began,
            "retries": span.retries,
            "bytes": span.bytes,
        }
        self.rows.append(row)
        if span is not self.whole:
            self.whole.retries += span.retries
            self.whole.bytes += span.bytes


def collect_execution_facts(events: pa.Table) -> pa.Table:
    """The facts of one execution. They end at an event that cannot be read; `verify` reports it."""
    story = _ExecutionStory(events.column("execution_id")[0].as_py())
    with suppress(CorruptLog):
        for event in decode_events(events):
            _add_event(story, event)
    return pa.Table.from_pylist(story.rows, FACT_SCHEMA)


def _add_event(story: _ExecutionStory, event: e.Event) -> None:
    match event:
        case e.PlaybookInitialized():
            story.path, story.whole.began = event.path, event.at
        case e.StepEnter():
            story.spans[event.activation] = _Span(event.step, event.at)
        case e.CommandIssued():
            story.commands[event.command_id] = event.activation
        case e.RetryStarted() | e.CommandReclaimed():
            activation = story.commands.get(event.command_id, "")
            span = story.spans.get(activation)
            if span is not None:
                span.retries += 1
        case e.CommandCompleted():
            activation = story.commands.get(event.command_id, "")
            span = story.spans.get(activation)
            if span is not None and event.result.reference is not None:
                span.bytes += event.result.reference.bytes or 0
        case e.StepExit():
            span = story.spans.pop(event.activation, None)
            if span is not None:
                story.end_span(span, event.result.status, event.at)
        case e.PlaybookCompleted():
            story.end_span(story.whole, "ok", event.at)
        case e.PlaybookFailed():
            story.end_span(story.whole, "error", event.at)
        case e.ExecutionCancelled():
            story.end_span(story.whole, "cancelled", event.at)
        case _:
            pass
