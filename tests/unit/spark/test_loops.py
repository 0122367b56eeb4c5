"""How a loop on Spark is divided, and what its tasks do, without Spark."""

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.cli.language import check_playbook_or_raise
from noetl.model.codec import encode
from noetl.model.commands import Command, Scope
from noetl.model.envelope import Envelope
from noetl.model.ids import ActivationId, CommandId, ExecutionId
from noetl.pipeline.loop.on_spark import make_portable_plan
from noetl.playbook.plan import compile_plan
from noetl.spark.messages import LoopSource, LoopWork
from noetl.spark.step.loops import MAX_SHARDS, LoopDivision, divide_loop
from noetl.spark.tasks.entry import choose_row_schema
from noetl.spark.tasks.inline_python import InlinePython
from noetl.spark.tasks.shard import run_numbered_shards
from noetl.tools.python.tool import Python
from tests.play import workflow
from tests.unit.tools.calls import call, closing
from tests.unit.tools.calls import run as play


@pytest.mark.parametrize(
    ("size", "chunk", "window", "cheap", "expected"),
    [
        (1, None, None, True, LoopDivision(1, 1, 250)),
        (1_000, None, None, True, LoopDivision(63, 16, 250)),
        (1_000_000, None, None, True, LoopDivision(20_000, 50, 250)),
        (1_000_000, None, None, False, LoopDivision(1_000, 1_000, 25)),
        (1_000, 90, None, True, LoopDivision(90, 12, 250)),
        (1_000, None, 100, False, LoopDivision(63, 16, 25)),
        (1_000, None, 2, False, LoopDivision(500, 2, 1)),  # no more at once than the loop allows
        (100_000_000, 10, None, True, LoopDivision(100_000, MAX_SHARDS, 250)),
    ],
)
def test_how_a_loop_is_divided(
    size: int, chunk: int | None, window: int | None, cheap: bool, expected: LoopDivision
) -> None:
    found = divide_loop(size, chunk, window, cheap=cheap, cores=4)
    assert found == expected
    assert found.chunk * found.shards >= size > found.chunk * (found.shards - 1)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (None, LoopDivision(1_000, 1_000, 25)),
        (40, LoopDivision(25_000, 40, 1)),
        (100_000, LoopDivision(1_000, 1_000, 100)),
    ],
)
def test_a_window_holds_on_a_cluster_of_any_size(
    window: int | None, expected: LoopDivision
) -> None:
    found = divide_loop(1_000_000, None, window, cheap=False, cores=4, here=False)
    assert found == expected
    assert window is None or found.shards * found.together <= window


# ---- in a task -------------------------------------------------------------------------------------------------------------

BODY = """
- {step: factor, tool: {kind: python, code: "result = 1"}, next: each}
- step: each
  loop: {in: "{{ workload.rows }}", iterator: row, spec: {policy: {exec: spark}, reduce: {ctx.sum: sum}}}
  tool:
    kind: python
    input: {n: "{{ row.n }}", by: "{{ factor.value }}"}
    code: |
      if n % 5 == 3:
          raise ValueError(f"no {n}")
      result = n * by
"""
SET = BODY + '    set: {ctx.sum: "{{ output.data }}"}\n'
WAITS = """
- step: each
  loop: {in: "{{ workload.rows }}", iterator: row, spec: {policy: {exec: spark}}}
  tool:
    kind: python
    input: {n: "{{ row.n }}", tried: "{{ _attempt }}"}
    code: |
      if n == 4 and tried < 3:
          raise ValueError("later")
      result = [n, tried]
    spec: {policy: {rules: [{when: "{{ error is defined }}", then: {do: retry, attempts: 3, delay: 0}}]}}
"""


def run_and_describe(
    tmp_path: Path, steps: str, parts: int = 3
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of all shards of a collection of twelve, and how their items ended."""
    rows, answers = run_shards(tmp_path, steps, parts)
    return rows, [each["items"] for each in answers]


def run_shards(
    tmp_path: Path, steps: str, parts: int = 3
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of all shards of a collection of twelve, and what the tasks say of them."""
    plan = compile_plan(
        check_playbook_or_raise(workflow(steps, workload={"rows": []}), "test"), "hash"
    )
    command = Command(
        command_id=CommandId("c"), execution_id=ExecutionId("1"), playbook="hash", step="each", kind="chunk", size=12,
        activation=ActivationId("a"), scope=Scope(results={"factor": Envelope(status="ok")}),
    )  # fmt: skip
    (tmp_path / "told").mkdir()
    pq.write_table(pa.table({"n": range(12)}), tmp_path / "in.parquet", row_group_size=5)
    work = LoopWork(
        plan=base64.b64encode(pickle.dumps(make_portable_plan(plan, "each"))).decode(),
        command=base64.b64encode(encode(command)).decode(),
        known=base64.b64encode(encode({"factor": {"value": 10}})).decode(),
        chunk=12 // parts,
        shards=parts,
        together=4,
        size=12,
        provenance="provenance:" in steps,
        source=LoopSource([str(tmp_path / "in.parquet")], indexed=False),
        reports=str(tmp_path / "told"),
        folder=str(tmp_path),
    )
    numbers = pa.RecordBatch.from_pydict({"id": range(parts)})
    found = [
        json.loads(text)
        for batch in run_numbered_shards(work, [numbers])
        for text in batch.column("told").to_pylist()
    ]
    tables = [pq.read_table(each["file"]["path"]) for each in found]
    assert all(table.schema.equals(choose_row_schema(work)) for table in tables)
    assert [json.loads((tmp_path / "told" / str(n)).read_text()) for n in range(parts)] == [
        f["items"] for f in found
    ]
    return [row for table in tables for row in table.to_pylist()], found


@pytest.mark.parametrize("steps", [BODY, SET], ids=["plain", "pipeline"])
def test_every_item_is_a_row_in_order(steps: str, tmp_path: Path) -> None:
    rows, items = run_and_describe(tmp_path, steps)
    assert [(row["index"], row["status"], row["tries"]) for row in rows] == [
        (n, "error" if n in (3, 8) else "ok", 1) for n in range(12)
    ]
    assert [None if row["result"] is None else json.loads(row["result"]) for row in rows] == [
        None if n in (3, 8) else n * 10 for n in range(12)
    ]
    assert json.loads(rows[3]["error"])["message"] == "ValueError: no 3 (line 2)"
    assert [(part["ok"], part.get("failed", 0), part.get("first_failed")) for part in items] == [
        (3, 1, 3), (4, 0, None), (3, 1, 8),
    ]  # fmt: skip
    if steps == SET:
        assert [part["partial"] for part in items] == [
            {"ctx.sum": 30},
            {"ctx.sum": 220},
            {"ctx.sum": 300},
        ]


def test_each_item_has_its_provenance_and_a_shard_what_its_items_share(tmp_path: Path) -> None:
    steps = BODY + '    provenance: {n: "{{ row.n }}", third: "{{ loop.index // 4 }}", seed: 7}\n'
    rows, answers = run_shards(tmp_path, steps)
    assert [row["status"] for row in rows].count("error") == 2, "failed items have it too"
    assert [json.loads(row["provenance"]) for row in rows] == [
        {"n": n, "third": n // 4, "seed": 7} for n in range(12)
    ]
    assert [each["provenance"] for each in answers] == [
        {"n": "per item", "third": n, "seed": 7} for n in range(3)
    ]


def test_an_item_is_tried_again_by_its_policy(tmp_path: Path) -> None:
    rows, _ = run_and_describe(tmp_path, WAITS)
    assert [row["tries"] for row in rows] == [3 if n == 4 else 1 for n in range(12)]
    assert json.loads(rows[4]["result"]) == [4, 3]


@pytest.mark.parametrize(
    "code",
    [
        "result = {'a': [1, 2.5, None, 'ä', True], 'b': {}}",
        "result = float('nan')",
        "result = [2 ** 70, {1: 'one'}]",
        "result = [None, {1: 'one', '1': 'two'}]",
        "import datetime; result = {datetime.date(2024, 2, 29), 3}",
        "import datetime; result = datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)",
        "import decimal, uuid; result = [decimal.Decimal('1.10'), uuid.UUID(int=5), b'x', (1, 2)]",
        "result = object()",
        "raise SystemExit(3)",
        "return 7",
        "import asyncio\nawait asyncio.sleep(0)\nresult = input['x']",
        "def main(x): return x + 1",
        "1 +",
    ],
)
def test_python_in_a_task_is_what_it_is_elsewhere(code: str) -> None:
    given = call({"code": code}, input={"x": 1})
    (inline,) = play(closing(InlinePython(), given))
    (usual,) = play(closing(Python(), given))
    assert inline == usual
