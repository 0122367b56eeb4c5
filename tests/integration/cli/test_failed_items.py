"""Failed items of a loop run again with `noetl exec retry`, whether the loop failed at its end or completed without them."""

from pathlib import Path

import pytest

from tests.stack import NoetlCommand

ITEMS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: items, path: test/items_{name}}}
workload: {{mended: "", ran: ""}}
workflow:
  - step: load
    tool: {{kind: python, code: "result = list(range(8))"}}
    next: each
  - step: each
    loop: {{in: "{{{{ load }}}}", iterator: n, spec: {{mode: parallel, chunk: 1, policy: {{failure: {name}}}}}}}
    tool:
      kind: python
      input: {{n: "{{{{ n }}}}", mended: "{{{{ workload.mended }}}}", ran: "{{{{ workload.ran }}}}"}}
      code: |
        import pathlib
        (pathlib.Path(ran) / str(n)).open("a").write("x")
        assert n not in (3, 5) or pathlib.Path(mended).exists(), f"no {{n}}"
        result = n * n
    next: report
  - step: report
    tool:
      kind: python
      input: {{rows: "{{{{ each.rows }}}}"}}
      code: "result = [row if isinstance(row, int) else None for row in rows]"
"""
SQUARES = [n * n for n in range(8)]


@pytest.mark.parametrize(("name", "status"), [("at_end", "failed"), ("best_effort", "completed")])
def test_retry_runs_the_failed_items_and_the_steps_after_the_loop(
    noetl: NoetlCommand, tmp_path: Path, name: str, status: str
) -> None:
    file, ran, mended = tmp_path / "items.yaml", tmp_path / "ran", tmp_path / "mended"
    ran.mkdir()
    file.write_text(ITEMS.format(name=name))
    code = 0 if status == "completed" else 1
    first = noetl.json("run", file, "--set", f"mended={mended}", "--set", f"ran={ran}", code=code)
    assert first["status"] == status
    assert {each.name: len(each.read_text()) for each in ran.iterdir()} == {
        str(n): 1 for n in range(8)
    }
    if status == "completed":
        assert first["result"] == [None if n in (3, 5) else n * n for n in range(8)]
    else:
        assert first["error"]["code"] == "LOOP_FAILED"
        assert "2 of 8 items" in first["error"]["message"]
    mended.touch()
    again = noetl.json("exec", "retry", first["execution_id"])
    assert (again["status"], again["result"]) == ("completed", SQUARES)
    assert {each.name: len(each.read_text()) for each in ran.iterdir()} == {
        str(n): 2 if n in (3, 5) else 1 for n in range(8)
    }
    done = noetl("exec", "retry", again["execution_id"])
    assert done.code != 0
    assert "nothing is left to run" in done.err


def test_retry_runs_chosen_items_and_says_what_it_leaves_out(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    file, ran, mended = tmp_path / "items.yaml", tmp_path / "ran", tmp_path / "mended"
    ran.mkdir()
    file.write_text(ITEMS.format(name="at_end"))
    first = noetl.json("run", file, "--set", f"mended={mended}", "--set", f"ran={ran}", code=1)
    mended.touch()
    chosen = ("exec", "retry", first["execution_id"], "--step", "each", "--item", "3")
    planned = noetl(*chosen, "--dry-run").out
    assert "begins with   each (1 of 8 items)" in planned
    assert "1 other failed item of each will not run, so the loop fails" in planned
    again = noetl.json(*chosen, code=1)
    assert "1 more failed before and were left out of this retry" in again["error"]["message"]
    assert {each.name for each in ran.iterdir() if len(each.read_text()) == 2} == {"3"}
    last = noetl.json("exec", "retry", again["execution_id"])
    assert (last["status"], last["result"]) == ("completed", SQUARES)
    assert {each.name for each in ran.iterdir() if len(each.read_text()) == 2} == {"3", "5"}
    for wrong, reason in (
        (("--item", "3"), "of which loop?"),
        (("--step", "each", "--item", "3;5"), "'3;5' is no index of an item"),
        (("--step", "each", "--item", "4"), "item 4 of step 'each' has no failure of its own"),
        (("--step", "load"), "'load' is not one that a retry begins with: each"),
    ):
        refused = noetl("exec", "retry", first["execution_id"], *wrong)
        assert refused.code == 2, refused
        assert reason in refused.err


def test_failed_items_are_shown_with_their_kinds(noetl: NoetlCommand, tmp_path: Path) -> None:
    file, ran = tmp_path / "items.yaml", tmp_path / "ran"
    ran.mkdir()
    file.write_text(ITEMS.format(name="best_effort"))
    first = noetl.json("run", file, "--set", f"mended={tmp_path / 'no'}", "--set", f"ran={ran}")
    execution_id = first["execution_id"]
    page = noetl.json("exec", "items", execution_id, "each", "--failed")
    assert [(item["index"], item["item"]) for item in page["items"]] == [(3, 3), (5, 5)]
    assert [(kind["count"], kind["first"]) for kind in page["kinds"]] == [(2, 3)]
    shown = noetl("exec", "items", execution_id, "each", "--kind", "1", "--limit", "1")
    assert "2 × PYTHON_ERROR" in shown.out
    assert "there are more" in shown.out
    everything = noetl.json("exec", "items", "@latest", "each", "--status", "all")
    assert [item["value"] for item in everything["items"] if item["status"] == "ok"] == [
        n * n for n in range(8) if n not in (3, 5)
    ]
    for refused in (("--kind", "2"), ("--status", "broken"), ("--failed", "--status", "ok")):
        assert noetl("exec", "items", execution_id, "each", *refused).code == 2
    assert noetl("exec", "items", execution_id, "load").code != 0
    planned = noetl.json("exec", "retry", execution_id, "--preview")
    counts = {"again": 2, "total": 8, "left": 0, "fails_again": False}
    assert planned["items"] == {"each": counts}
    listed = noetl.json("exec", "list", "--status", "completed,failed", "--search", "test/items")
    assert listed[0]["execution_id"] == execution_id
    assert {row["path"] for row in listed} <= {"test/items_at_end", "test/items_best_effort"}
    assert noetl.json("exec", "list", "--search", execution_id, "--until", "1h") == []
    assert noetl.json("exec", "list", "--search", execution_id, "--waiting") == []
