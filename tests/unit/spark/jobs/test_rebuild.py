"""Rows compared with folds, on literal data."""

from typing import Any

import pyarrow as pa
import pytest

from noetl.spark.jobs.folding import PROJECTIONS, fold_execution
from noetl.spark.jobs.rebuild import RowDifference, compare_rows
from tests.unit.spark.jobs.test_rows import batch, event

FIRST = event(
    event_type="playbook.initialized",
    meta='{"type":"playbook.initialized","at":5,"execution_id":"7","path":"p","playbook":"h"}',
)


def row(**more: Any) -> dict[str, Any]:
    usual = {
        "execution_id": 7, "shard": 3, "tenant": 1, "path": "p", "status": "running", "last_seq": 9, "started_at": 5,
        "updated_at": 6, "ended_at": None, "parent": None, "retry_of": None, "error": None, "steps": 0,
        "recovered": 0, "live": None, "waiting": False, "state": b"{}",
        "state_hash": "h",
    }  # fmt: skip
    return {**usual, **more}


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), PROJECTIONS)


def test_equal_rows_differ_in_nothing() -> None:
    assert list(compare_rows(table(row()), [row()], {})) == []


@pytest.mark.parametrize(
    ("field", "stored", "shown"),
    [("status", "failed", "failed"), ("steps", 2, 2), ("state", b"[1]", "3 bytes")],
)
def test_every_field_that_differs_is_named(field: str, stored: Any, shown: Any) -> None:
    (found,) = compare_rows(table(row()), [row(**{field: stored})], {})
    assert (found.execution_id, found.field, found.stored) == ("7", field, shown)


def test_a_row_is_missing_only_when_the_projector_has_passed_it() -> None:
    assert list(compare_rows(table(row()), [], {3: 8})) == []
    assert list(compare_rows(table(row()), [], {3: 9})) == [
        RowDifference("7", None, None, "running")
    ]


def test_an_execution_is_folded_by_the_engine() -> None:
    events = pa.Table.from_batches([batch(event(seq=2), FIRST)])
    (found,) = fold_execution(events, {}).to_pylist()
    assert (found["execution_id"], found["status"], found["path"], found["last_seq"]) == (
        7,
        "running",
        "p",
        2,
    )
    assert (found["shard"], found["tenant"], found["started_at"]) == (3, 1, 5)


def test_one_that_does_not_fold_is_quarantined_with_the_reason() -> None:
    (found,) = fold_execution(
        pa.Table.from_batches([batch(FIRST, event(seq=2, meta="{}"))]), {}
    ).to_pylist()
    assert (found["status"], found["last_seq"], found["state"], found["path"]) == (
        "quarantined",
        2,
        None,
        "p",
    )
    assert found["error"].startswith("CorruptLog: ")
    (lost,) = fold_execution(
        pa.Table.from_batches([batch(FIRST)]), {"h": "NotFound: gone"}
    ).to_pylist()
    assert (lost["status"], lost["error"], lost["state"]) == ("quarantined", "NotFound: gone", None)
