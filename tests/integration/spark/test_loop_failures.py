"""What failed items of a loop on Spark mean for the execution, for each failure policy, and what a retry runs again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.spark.test_playbooks import noetl
from tests.stack import NoetlCommand, write_playbook

__all__ = ["noetl"]

ITEMS = 12
FAILED = (3, 8)  # the first raises an exception, the second runs until its timeout
STEPS = """\
  - step: each
    loop:
      in: "{{ range(12) | list }}"
      iterator: n
      spec: {chunk: 4, policy: {exec: spark, failure: FAILURE}}
    tool:
      kind: python
      timeout: 2s
      input: {n: "{{ n }}"}
      code: |
        import time
        from pathlib import Path
        with open(Path("FOLDER", str(n)), "a") as runs:
            runs.write("x")
        broken = not Path("FOLDER", "mended").exists()
        if broken and n == 3:
            raise ValueError(f"bad {n}")
        while broken and n == 8:
            time.sleep(0.01)
        result = n * n
    next: last
  - step: last
    tool: {kind: python, input: {rows: "{{ each.rows }}", stats: "{{ each.stats }}"}, code: result = input}
"""
STATS = {"total": ITEMS, "ok": ITEMS - len(FAILED), "failed": len(FAILED), "skipped": 0}
SQUARES = [n * n for n in range(ITEMS)]


@dataclass(frozen=True)
class Policy:
    failure: str
    completes: bool


POLICIES = [
    Policy("fail_fast", completes=False),
    Policy("at_end", completes=False),
    Policy("best_effort", completes=True),
    Policy("{max_failed: 1}", completes=False),
    Policy("{max_failed: 2}", completes=True),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.failure)
def test_the_failure_policy_decides_and_a_retry_runs_the_failed_items_only(
    noetl: NoetlCommand, tmp_path: Path, policy: Policy
) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    steps = STEPS.replace("FOLDER", str(folder)).replace("FAILURE", policy.failure)
    first = noetl.json(
        "run", write_playbook(tmp_path, "policies", steps), code=0 if policy.completes else 1
    )
    assert runs_of(folder) == dict.fromkeys(range(ITEMS), 1), (
        "every item runs once, whatever the policy"
    )
    assert first["recovered"] == (len(FAILED) if policy.completes else 0)
    if policy.completes:
        check_completed(first)
    else:
        check_failed(first)
    (folder / "mended").touch()
    again = noetl.json("exec", "retry", first["execution_id"])
    assert (again["status"], again["recovered"]) == ("completed", 0)
    assert again["result"]["rows"] == SQUARES
    assert runs_of(folder) == {n: 2 if n in FAILED else 1 for n in range(ITEMS)}


def check_completed(said: dict[str, Any]) -> None:
    assert said["status"] == "completed"
    assert said["result"]["stats"] == STATS
    rows = said["result"]["rows"]
    assert [row for n, row in enumerate(rows) if n not in FAILED] == [
        n * n for n in range(ITEMS) if n not in FAILED
    ]
    assert [rows[n]["error"]["code"] for n in FAILED] == ["PYTHON_ERROR", "TIMEOUT"]


def check_failed(said: dict[str, Any]) -> None:
    assert (said["status"], said["error"]["step"], said["error"]["code"]) == (
        "failed",
        "each",
        "LOOP_FAILED",
    )
    assert (
        "2 of 12 items of loop each failed; item 3: ValueError: bad 3" in said["error"]["message"]
    )


def runs_of(folder: Path) -> dict[int, int]:
    return {
        int(file.name): len(file.read_text()) for file in folder.iterdir() if file.name != "mended"
    }
