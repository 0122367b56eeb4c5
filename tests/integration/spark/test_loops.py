"""Loops with items that run in Spark's tasks, as users run them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.api.process import Api
from tests.integration.spark.test_playbooks import noetl
from tests.stack import NoetlCommand, write_playbook

__all__ = ["noetl"]

PYTHON = """\
  - step: numbers
    tool: {kind: python, code: "result = [{'id': n, 'x': n / 4} for n in range(1000)]"}
    set: {ctx.total: 0}
    next: names
  - step: names
    tool: {kind: python, code: "result = {'odd': 'one', 'even': 'two'}"}
    next: each
  - step: each
    loop:
      in: "{{ numbers.rows }}"
      iterator: row
      spec: {chunk: 90, policy: {exec: spark, failure: FAILURE}, reduce: {ctx.total: sum}}
    tool:
      kind: python
      input: {row: "{{ row }}", at: "{{ loop.index }}", last: "{{ loop.last }}", names: "{{ names }}"}
      code: |
        from pathlib import Path
        with open(Path("FOLDER", str(at)), "a") as runs:
            runs.write("x")
        if at % 100 == 7 and not Path("FOLDER", "mended").exists():
            raise ValueError(f"bad {at}")
        result = {"twice": row["id"] * 2, "x": row["x"], "name": names["odd" if at % 2 else "even"], "last": last}
      set: {ctx.total: "{{ output.data.twice }}"}
    next: last
  - step: last
    tool:
      kind: python
      input: {rows: "{{ each.rows }}", total: "{{ ctx.total }}", stats: "{{ each.stats }}"}
      code: result = input
"""
HTTP = """\
  - step: each
    loop:
      in: "{{ range(60) | list }}"
      iterator: n
      spec: {max_in_flight: 20, policy: {exec: spark, failure: best_effort}}
    tool:
      - name: get
        kind: http
        url: "BASE/hosts/jsonplaceholder/posts/{{ n + 1 if n % 20 else 999 }}"
      - name: short
        kind: python
        input: {id: "{{ get.data.id }}"}
        code: result = id
    next: last
  - step: last
    tool:
      kind: python
      input: {rows: "{{ each.rows }}", stats: "{{ each.stats }}"}
      code: result = input
"""


def python(folder: Path, failure: str) -> str:
    return PYTHON.replace("FOLDER", str(folder)).replace("FAILURE", failure)


def make_expected(index: int) -> dict[str, Any]:
    name = "one" if index % 2 else "two"
    return {"twice": 2 * index, "x": index / 4, "name": name, "last": index == 999}


def test_a_failed_item_is_a_row_and_the_rest_is_right(noetl: NoetlCommand, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    said = noetl.json("run", write_playbook(tmp_path, "items", python(runs, "best_effort")))
    assert said["status"] == "completed", said
    result = said["result"]
    assert result["stats"] == {"total": 1000, "ok": 990, "failed": 10, "skipped": 0}
    bad = range(7, 1000, 100)
    assert [row for index, row in enumerate(result["rows"]) if index not in bad] == [
        make_expected(index) for index in range(1000) if index not in bad
    ]
    assert result["total"] == sum(2 * index for index in range(1000) if index not in bad)
    lines = noetl("exec", "events", "@latest", "--json").out.splitlines()
    events = Counter(json.loads(line)["type"] for line in lines)
    assert (events["loop.shard.done"], events["loop.fanin.completed"], events["loop.done"]) == (
        12,
        1,
        1,
    )
    assert events.total() <= 10 * 12 + 20


def test_a_retry_runs_the_failed_items_only(noetl: NoetlCommand, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    said = noetl.json("run", write_playbook(tmp_path, "again", python(runs, "fail_fast")), code=1)
    assert said["error"]["code"] == "LOOP_FAILED"
    assert (
        "10 of 1000 items of loop each failed; item 7: ValueError: bad 7"
        in said["error"]["message"]
    )
    (runs / "mended").touch()
    said = noetl.json("exec", "retry", "@latest")
    assert said["status"] == "completed", said
    assert said["result"]["rows"] == [make_expected(index) for index in range(1000)]
    twice = {
        int(file.name)
        for file in runs.iterdir()
        if file.name != "mended" and file.read_text() == "xx"
    }
    assert twice == set(range(7, 1000, 100))


def test_requests_are_made_from_tasks(noetl: NoetlCommand, tmp_path: Path, api: Api) -> None:
    said = noetl.json("run", write_playbook(tmp_path, "requests", HTTP.replace("BASE", api.url)))
    assert said["status"] == "completed", said
    assert said["result"]["stats"] == {"total": 60, "ok": 57, "failed": 3, "skipped": 0}
    assert [n for n in said["result"]["rows"] if isinstance(n, int)] == [
        n + 1 for n in range(60) if n % 20
    ]


def test_what_cannot_run_in_a_task_is_told_at_once(noetl: NoetlCommand, tmp_path: Path) -> None:
    steps = """\
  - step: each
    loop: {in: "{{ range(3) | list }}", spec: {policy: {exec: spark, failure: best_effort}}}
    tool: {kind: workbook, name: ask}
workbook:
  - {name: ask, tool: {kind: postgres, auth: local, query: select 1}}
"""
    said = noetl.json("run", write_playbook(tmp_path, "never", steps), code=1)
    assert (said["error"]["step"], said["error"]["code"]) == ("each", "LOOP_ON_SPARK")


# ---- secrets ---------------------------------------------------------------------------------------------------------------

CANARY = "canary-7d20-c3e1f9"
SECRET = """\
  - step: each
    loop:
      in: "{{ range(30) | list }}"
      iterator: n
      spec: {chunk: 5, max_in_flight: 10, policy: {exec: spark, failure: best_effort}}
    tool:
      - name: get
        kind: http
        url: BASE/hosts/httpbin/get
        auth: "{{ 'spark_tokens' if n % 10 else 'nobodys' }}"
        headers: {x-other: "{{ keychain.api.token }}"}
      - name: told
        kind: python
        input: {headers: "{{ get.data.headers }}", token: "{{ keychain.api.token }}"}
        code: |
          print(token)
          result = [headers["authorization"], headers["x-other"], token, len(token)]
    next: last
  - step: last
    tool:
      kind: python
      input: {rows: "{{ each.rows }}", stats: "{{ each.stats }}"}
      code: result = input
"""


def test_tasks_ask_for_secrets_which_are_nowhere_else(
    noetl: NoetlCommand, tmp_path: Path, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = noetl.and_env(NOETL_CREDENTIAL_SPARK_TOKENS=json.dumps({"token": CANARY}))
    file = write_playbook(tmp_path, "secret", SECRET.replace("BASE", api.url))
    keychain = "keychain: [{name: api, kind: bearer, credential: spark_tokens}]\nworkflow:"
    file.write_text(file.read_text().replace("workflow:", keychain))
    said = here.json("run", file)
    assert said["status"] == "completed", said
    assert said["result"]["stats"] == {"total": 30, "ok": 27, "failed": 3, "skipped": 0}
    shown = "***api.token***"  # what was sent, and came back
    for n, row in enumerate(said["result"]["rows"]):
        if n % 10:
            assert row == [f"Bearer {shown}", shown, shown, len(CANARY)]
        else:
            assert (row["error"]["code"], "'nobodys'" in row["error"]["message"]) == (
                "CREDENTIAL_MISSING",
                True,
            )
    written = [noetl.home, *tmp_path_factory.getbasetemp().parent.rglob("spark-home")]
    assert [
        path for folder in written for path in folder.rglob("*") if _holds(path, CANARY.encode())
    ] == []


def _holds(path: Path, secret: bytes) -> bool:
    try:
        return path.is_file() and secret in path.read_bytes()
    except FileNotFoundError:
        return False


# ---- examples --------------------------------------------------------------------------------------------------------------


def test_an_example_grades_many_items(noetl: NoetlCommand) -> None:
    said = noetl.json("run", "examples/spark_loop.yaml", "--set", "count=10100")
    assert said["result"] == {"graded": 10_000, "failed": 100, "first": {"id": 0, "hot": False}}


def test_an_example_goes_from_postgres_to_postgres(noetl: NoetlCommand) -> None:
    for _ in range(2):
        said = noetl.json("run", "examples/spark_postgres.yaml", "--set", "visits=6130")
        assert said["result"]["rows"] == [
            {"days": 30, "visits": 6120, "seconds": 10 * 612 * 613 // 2}
        ]


def test_an_example_joins_an_api_with_a_folder(noetl: NoetlCommand, tmp_path: Path) -> None:
    said = noetl.json(
        "run", "examples/spark_join.yaml", "--set", f"folder={tmp_path / 'discounts'}"
    )
    rows = said["result"]["rows"]
    assert [(row["country"], row["percent"], row["customers"]) for row in rows] == [
        ("Egypt", 25, 40), ("Chad", 20, 40), ("Brazil", 10, 40), ("Austria", 5, 40), ("Denmark", 0, 40),
    ]  # fmt: skip


# ---- provenance ------------------------------------------------------------------------------------------------------------

PROVENANCE = """\
  - step: sweep
    loop: {in: [1, 2, 3], iterator: angle, spec: {chunk: 2, policy: {exec: spark, failure: best_effort}}}
    tool:
      kind: python
      input: {angle: "{{ angle }}"}
      code: "result = 6 // (angle - 2)"
      provenance: {angle: "{{ angle }}", seed: 7}
    next: one
  - step: one
    tool: {kind: python, code: result = 1}
"""


def test_trace_shows_the_provenance_of_a_loop(noetl: NoetlCommand, tmp_path: Path) -> None:
    said = noetl.json("run", write_playbook(tmp_path, "provenance", PROVENANCE))
    assert said["status"] == "completed", said
    (node,) = noetl.json("trace", said["execution_id"], "sweep")["nodes"]
    assert node["provenance"] == {"angle": "per item", "seed": 7}
