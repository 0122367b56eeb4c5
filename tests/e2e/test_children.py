"""Child executions on the whole stack: what they give, how they fail, and how they end with their parent."""

from pathlib import Path

import psycopg
import pytest

from noetl.embedded import EmbeddedPostgres
from tests.e2e.conftest import StackClient
from tests.e2e.test_control import has_ended
from tests.waiting import until

HALF = """
- step: half
  tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "assert n % 2 == 0, 'odd'\\nresult = n // 2"}
  next: told
- {step: told, tool: {kind: python, input: {n: "{{ half }}"}, code: "result = f'half is {n}'"}}
"""
CALLS = """
- step: call
  tool: {{kind: playbook, path: {path}, input: {{n: "{{{{ workload.n }}}}"}}{more}}}
  set: {{ctx.got: "{{{{ call }}}}"}}
  next:
    - {{step: sorry, when: "{{{{ error is defined and workload.handled }}}}"}}
    - {{step: done, when: "{{{{ error is not defined }}}}"}}
- {{step: done}}
- {{step: sorry, tool: {{kind: noop}}, set: {{ctx.code: "{{{{ call.error.code }}}}", ctx.why: "{{{{ call.error.message }}}}"}}}}
"""


def calls(stack: StackClient, more: str = "") -> str:
    return stack.register(CALLS.format(path=stack.register(HALF), more=more))


def test_a_child_gives_its_last_result_or_that_of_the_step_that_is_named(
    stack: StackClient,
) -> None:
    assert (
        stack.wait_for_end(stack.start(calls(stack), n=8, handled=False))["vars"]["got"]
        == "half is 4"
    )
    assert (
        stack.wait_for_end(stack.start(calls(stack, ", return_step: half"), n=8, handled=False))[
            "vars"
        ]["got"]
        == 4
    )


def test_a_child_that_fails_fails_its_parents_step(stack: StackClient) -> None:
    path = calls(stack)
    parent = stack.start(path, n=7, handled=False)
    row = stack.wait_for_end(parent)
    assert (row["status"], row["failure"]["step"], row["failure"]["code"]) == (
        "failed",
        "call",
        "CHILD_FAILED",
    )
    assert "odd" in row["failure"]["message"]
    (child,) = stack.children(parent)
    assert (child["status"], child["parent"]) == ("failed", parent)
    handled = stack.wait_for_end(stack.start(path, n=7, handled=True))
    assert (handled["status"], handled["vars"]["code"]) == ("completed", "CHILD_FAILED")


def test_a_child_that_is_not_there_fails_the_step_too(stack: StackClient) -> None:
    row = stack.wait_for_end(
        stack.start(stack.register(CALLS.format(path="test/nowhere", more="")), n=1, handled=True)
    )
    assert (row["status"], row["vars"]["code"]) == ("completed", "NOT_FOUND")


def test_a_detached_child_goes_on_alone(stack: StackClient) -> None:
    child = stack.register("- {step: gate, tool: {kind: wait, signal: go}}\n")
    parent = stack.wait_for_end(
        stack.start(
            stack.register(CALLS.format(path=child, more=", wait: false")), n=1, handled=False
        )
    )
    assert parent["status"] == "completed"
    alone = parent["vars"]["got"]["execution_id"]
    assert not stack.get(f"/api/executions/{alone}/status")["ended"]
    stack.ask(alone, "signals/go", {})
    assert stack.wait_for_end(alone)["status"] == "completed"


BREAKS = """
- step: fine
  tool: {kind: noop}
  next: break
- step: break
  tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "def check(n):\\n    assert n != 2, 'two'\\ncheck(n)"}
"""
CALLS_EACH = """
- step: each
  loop: {{in: "{{{{ workload.items }}}}", iterator: n, spec: {{mode: sequential}}}}
  tool: {{kind: playbook, path: {path}, input: {{n: "{{{{ n }}}}"}}}}
"""
CALLS_ONE = """
- step: call
  tool: {{kind: playbook, path: {path}, input: {{items: [1, 2, 3], password: hush}}}}
"""


def test_an_execution_shows_its_workload_its_children_and_where_its_failure_began(
    stack: StackClient,
) -> None:
    breaks = stack.register(BREAKS)
    each = stack.register(CALLS_EACH.format(path=breaks))
    parent = stack.start(stack.register(CALLS_ONE.format(path=each)), mode="full", api_key="hush")
    row = stack.wait_for_end(parent)
    assert (row["status"], row["workload"]) == ("failed", {"mode": "full"})
    assert stack.get(f"/api/executions/{parent}/workload") == {"mode": "full"}
    assert row["steps"]["call"]["seconds"] > 0
    (middle,) = row["children"]["newest"]
    assert (row["children"]["total"], row["children"]["counts"]) == (1, {"failed": 1})
    assert (middle["path"], middle["status"]) == (each, "failed")
    cause = row["cause"]
    assert (cause["path"], cause["step"], cause["code"]) == (breaks, "break", "PYTHON_ERROR")
    assert "in check\n" in cause["detail"]["trace"]
    looped = stack.get(f"/api/executions/{middle['execution_id']}")
    assert looped["workload"] == {"items": [1, 2, 3]}
    assert looped["steps"]["each"]["loop"] == {"done": 3, "failed": 1, "skipped": 1, "total": 3}
    assert looped["children"]["counts"] == {"completed": 1, "failed": 1}
    assert looped["cause"] == cause
    shown = stack.noetl("exec", "get", parent).out
    assert f"child {cause['execution_id']} ({breaks}), step break: PYTHON_ERROR" in shown
    assert "traceback:\n  Traceback (most recent call last):" in shown
    assert "hush" not in shown


RECOVERS = """
- step: fails
  tool: {kind: python, code: "raise ValueError('odd')"}
  next: [{step: repair, when: "{{ error is defined }}"}]
- {step: repair, tool: {kind: noop, input: {n: 1}}}
"""


def test_a_parent_shows_that_its_child_recovered(stack: StackClient) -> None:
    path = stack.register(CALLS_ONE.format(path=stack.register(RECOVERS)))
    row = stack.wait_for_end(stack.start(path))
    assert (row["status"], row["recovered"]) == ("completed", 0)
    (child,) = row["children"]["newest"]
    assert (child["status"], child["recovered"]) == ("completed", 1)
    assert "completed (recovered: 1)" in stack.noetl("exec", "get", row["execution_id"]).out
    shown = stack.noetl("run", path)
    assert (shown.code, "completed (recovered: 1)" in shown.out) == (0, True), shown.out


def test_an_item_that_fails_is_the_cause_of_its_loop(stack: StackClient) -> None:
    steps = "- step: each\n  loop: {in: [1, 2], iterator: n}\n  tool: {kind: python, code: 'raise OSError(1)'}\n"
    row = stack.run(steps)
    assert (row["failure"]["code"], row["cause"]["code"], row["cause"]["item"]) == (
        "LOOP_FAILED",
        "PYTHON_ERROR",
        0,
    )
    assert "OSError" in row["cause"]["detail"]["trace"]


WAITS_FOR_A_FILE = """
- step: find
  tool: {kind: python, input: {mark: "{{ workload.mark }}"}, code: "result = {'mark': mark, 'n': 1}"}
  next: check
- step: check
  tool:
    kind: python
    input: {gate: "{{ workload.gate }}", mark: "{{ find.mark }}"}
    code: "import os\\nassert os.path.exists(gate), 'no file'\\nresult = [mark]"
"""
GIVES_ROWS = """
- {{step: load, tool: {{kind: python, code: "result = [{{'mark': 'CANARY-7'}}]"}}, next: each}}
- step: each
  loop: {{in: "{{{{ load.rows }}}}", iterator: row}}
  tool: {{kind: playbook, path: {path}, input: {{mark: "{{{{ row.mark }}}}", gate: "{{{{ workload.gate }}}}"}}}}
"""


def without_payloads(stack: StackClient, execution: str) -> int:
    """How many payloads of the execution were in the database, and are gone now."""
    embedded = EmbeddedPostgres(stack.noetl.home)
    query = "update noetl.result_ref set payload = null where payload is not null and uri like %s"
    try:
        with psycopg.connect(embedded.ensure_postgres().control) as database:
            return database.execute(query, [f"noetl://execution/{execution}/%"]).rowcount
    finally:
        embedded.stop_postgres()


def test_child_that_got_texts_of_rows_is_repeated_without_payloads_of_its_parent(
    stack: StackClient, tmp_path: Path
) -> None:
    """The marks are in the child's workload, and in no event: every test's log is searched for them."""
    gate = tmp_path / "gate"
    parent = stack.start(
        stack.register(GIVES_ROWS.format(path=stack.register(WAITS_FOR_A_FILE))), gate=str(gate)
    )
    assert stack.wait_for_end(parent)["status"] == "failed"
    (parked,) = stack.events(parent, "command.parked")
    assert parked["data"]["child"].keys() >= {"path", "reference"}
    (child,) = [row["execution_id"] for row in stack.children(parent)]
    assert stack.get(f"/api/executions/{child}")["workload"] == {
        "mark": "CANARY-7",
        "gate": str(gate),
    }
    assert without_payloads(stack, parent) >= 3  # the rows, the item, the input of the child
    gate.touch()
    for how in ("retry", "rerun"):
        repeated = stack.ask(child, how)["execution_id"]
        row = stack.wait_for_end(repeated)
        assert (row["status"], row["workload"]["mark"]) == ("completed", "CANARY-7")
        assert stack.get(f"/api/executions/{repeated}/result/check")["preview"]["rows"] == [
            "CANARY-7"
        ]
        (first,) = stack.events(repeated, "playbook.initialized")
        assert first["data"]["workload_by_reference"]


LEAF = """
- {{step: leaf, tool: {{kind: noop}}, set: {{ctx.text: {text}}}}}
"""
CALLS_LEAF = """
- {{step: inner, tool: {{kind: playbook, path: {leaf}}}}}
"""
CALLS_LATER = """
- {{step: first, tool: {{kind: wait, signal: first}}, next: literal}}
- {{step: literal, tool: {{kind: playbook, path: {middle}}}, next: named}}
- {{step: named, tool: {{kind: playbook, path: "{{{{ workload.named }}}}"}}, next: second}}
- {{step: second, tool: {{kind: wait, signal: second}}, next: again}}
- {{step: again, tool: {{kind: playbook, path: "{{{{ workload.named }}}}"}}}}
"""


def versions_called(stack: StackClient, parent: str) -> dict[str, tuple[str, int]]:
    """Path and version of each child, by its id."""
    ids = [row["execution_id"] for row in stack.children(parent)]
    rows = [stack.get(f"/api/executions/{child}") for child in ids]
    return {row["execution_id"]: (row["path"], row["version"]) for row in rows}


def test_children_registered_anew_do_not_change_what_a_running_parent_calls(
    stack: StackClient,
) -> None:
    """A child named literally, and its own child, are pinned when the parent starts; one named by a template when it is called
    for the first time."""
    for path in ("pinned/leaf", "pinned/named"):
        stack.register(LEAF.format(text="old"), path)
    stack.register(CALLS_LEAF.format(leaf="pinned/leaf"), "pinned/middle")
    top = stack.register(CALLS_LATER.format(middle="pinned/middle"))
    parent = stack.start(top, named="pinned/named")
    stack.comes(parent, "command.parked")
    for path in ("pinned/leaf", "pinned/named"):
        stack.register(LEAF.format(text="new"), path)
    stack.register(CALLS_LEAF.format(leaf="pinned/leaf") + LEAF.format(text="new"), "pinned/middle")
    stack.ask(parent, "signals/first", {})
    until(lambda: len(stack.events(parent, "child.ended")) == 2)
    stack.register(LEAF.format(text="newer"), "pinned/named")
    stack.ask(parent, "signals/second", {})
    assert stack.wait_for_end(parent)["status"] == "completed"
    called = versions_called(stack, parent)
    assert sorted(called.values()) == [
        ("pinned/middle", 1),
        ("pinned/named", 2),
        ("pinned/named", 2),
    ]
    (middle,) = (child for child, (path, _) in called.items() if path == "pinned/middle")
    assert list(versions_called(stack, middle).values()) == [("pinned/leaf", 1)]
    again = stack.ask(parent, "rerun")["execution_id"]
    for signal in ("first", "second"):
        stack.ask(again, f"signals/{signal}", {})
    assert stack.wait_for_end(again)["status"] == "completed"
    assert sorted(versions_called(stack, again).values()) == [
        ("pinned/middle", 2),
        ("pinned/named", 3),
        ("pinned/named", 3),
    ]


EACH = """
- step: each
  loop: {{in: "{{{{ range(workload.count) | list }}}}", iterator: n, spec: {{mode: parallel, max_in_flight: 20}}}}
  tool: {{kind: playbook, path: {path}, input: {{n: "{{{{ n * 2 }}}}"}}, return_step: half}}
  next: sum
- step: sum
  tool: {{kind: python, input: {{rows: "{{{{ each.rows }}}}"}}, code: "result = [len(rows), sum(rows)]"}}
  set: {{ctx.sum: "{{{{ sum }}}}"}}
"""


def test_500_children_in_a_loop_with_a_window_of_20_finish_without_polling(
    stack: StackClient,
) -> None:
    """Nobody asks how a child is: every command of the loop is issued, parked once, and taken up once by its child's end."""
    child = stack.register(HALF)
    parent = stack.start(stack.register(EACH.format(path=child)), count=500)
    row = stack.wait_for_end(parent)
    assert (row["status"], row["vars"]["sum"]) == ("completed", [500, sum(range(500))])
    open_, most, counts = 0, 0, dict[str, int]()
    for event in stack.events(parent):
        if event["data"].get("step") != "each" and event["type"] not in (
            "child.started",
            "child.ended",
        ):
            continue
        counts[event["type"]] = counts.get(event["type"], 0) + 1
        open_ += {"child.started": 1, "child.ended": -1}.get(event["type"], 0)
        most = max(most, open_)
    assert most <= 20
    for kind in (
        "command.issued",
        "command.parked",
        "child.started",
        "child.ended",
        "command.completed",
    ):
        assert counts[kind] == 500, counts
    assert len(stack.events(parent, "loop.done")) == 1


PICKY = """
- step: first
  tool:
    kind: python
    input: {n: "{{ workload.n }}"}
    code: |
      import time
      time.sleep(0.05 + n % 7 * 0.04)
      assert n != 13, "thirteen"
  next: second
- {step: second, tool: {kind: python, code: "import time; time.sleep(0.1)"}}
"""
PICKY_LOOP = """
- step: each
  loop:
    in: "{{{{ range(160) | list }}}}"
    iterator: n
    spec: {{mode: parallel, max_in_flight: 16, policy: {{failure: {failure}}}}}
  tool: {{kind: playbook, path: {path}, input: {{n: "{{{{ n }}}}"}}}}
"""


@pytest.mark.parametrize("failure", ["fail_fast", "{max_failed: 0}"])
def test_loop_over_children_ends_when_a_child_fails(stack: StackClient, failure: str) -> None:
    """A call that its worker reports after the loop has stopped starts no child; nobody waits for one."""
    path = stack.register(PICKY_LOOP.format(path=stack.register(PICKY), failure=failure))
    for _ in range(5):
        parent = stack.start(path)
        row = stack.wait_for_end(parent)
        assert (row["status"], row["failure"]["code"]) == ("failed", "LOOP_FAILED")
        assert {
            stack.wait_for_end(child["execution_id"])["status"] for child in stack.children(parent)
        } >= {"failed"}


def test_the_latest_execution_is_no_child_however_many_there_are(stack: StackClient) -> None:
    child = stack.register("- {step: half, tool: {kind: noop}}\n")
    parent = stack.start(stack.register(EACH.format(path=child).replace("next: sum", "")), count=60)
    row = stack.wait_for_end(parent)
    noetl = stack.noetl
    assert noetl.json("exec", "get", "@latest")["execution_id"] == parent
    assert (
        len(noetl.json("exec", "list", "--parent", "@latest", "-n", 100))
        == 60
        == row["children"]["total"]
    )
    assert noetl.json("exec", "list", "--parent", parent, "--failed") == []
    since = noetl.json("exec", "list", "--since", "1h", "--path", "test/*", "-n", 500)
    assert parent in {each["execution_id"] for each in since}
    assert noetl.json("exec", "list", "--since", row["ended_at"], "--parent", parent) == []
    refused = noetl("exec", "list", "--since", "yesterday")
    assert (refused.code, "not a time" in refused.err) == (2, True)


HANGS = """
- step: hang
  tool:
    kind: python
    input: {pids: "{{ workload.pids }}"}
    code: |
      import os, pathlib, signal, subprocess, time
      signal.signal(signal.SIGTERM, signal.SIG_IGN)
      grandchild = subprocess.Popen(["sleep", "600"])
      for pid in (os.getpid(), grandchild.pid):
          (pathlib.Path(pids) / str(pid)).touch()
      time.sleep(600)
"""
MIDDLE = """
- step: middle
  tool: {{kind: playbook, path: {path}, input: {{pids: "{{{{ workload.pids }}}}"}}}}
"""
TOP = """
- step: top
  loop: {{in: [1, 2, 3], iterator: n, spec: {{mode: parallel}}}}
  tool: {{kind: playbook, path: {path}, input: {{pids: "{{{{ workload.pids }}}}"}}}}
"""


def test_cancelling_an_execution_stops_all_its_children_and_their_processes(
    stack: StackClient, tmp_path: Path
) -> None:
    top = stack.register(TOP.format(path=stack.register(MIDDLE.format(path=stack.register(HANGS)))))
    parent = stack.start(top, pids=str(tmp_path))
    until(lambda: len(list(tmp_path.iterdir())) == 6)
    assert stack.noetl("exec", "cancel", parent).code == 0
    assert stack.wait_for_end(parent)["status"] == "cancelled"
    below = stack.children(parent)
    family = below + [each for child in below for each in stack.children(child["execution_id"])]
    assert len(family) == 6
    assert {stack.wait_for_end(each["execution_id"])["status"] for each in family} == {"cancelled"}
    assert all(has_ended(int(file.name)) for file in tmp_path.iterdir())
