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
