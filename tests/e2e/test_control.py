"""What holds an execution up, lets it go on, or ends it, on the whole stack."""

import os
from pathlib import Path

import pytest

from tests.e2e.conftest import StackClient
from tests.waiting import until

GATE = """
- step: gate
  tool: {kind: wait, signal: go}
  set: {ctx.said: "{{ gate }}"}
  next: [{step: late, when: "{{ error is defined }}"}, {step: done}]
- {step: done}
- {step: late, tool: {kind: noop}, set: {ctx.code: "{{ gate.error.code }}"}}
"""


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


# ---- waiting -----------------------------------------------------------------------------------------------------------


def test_a_signal_from_the_command_line_is_what_a_wait_gives(stack: StackClient) -> None:
    execution = stack.start(stack.register(GATE))
    stack.comes(execution, "command.parked")
    sent = stack.noetl("exec", "signal", execution, "go", "--payload", "{by: ada, n: 3}")
    assert sent.code == 0, sent.err
    row = stack.wait_for_end(execution)
    assert (row["status"], row["vars"]) == ("completed", {"said": {"by": "ada", "n": 3}})
    assert stack.path(execution) == ["gate", "done"]


def test_a_signal_that_comes_early_is_kept_and_sent_twice_with_one_key_comes_once(
    stack: StackClient,
) -> None:
    two = (
        GATE.replace("{step: done}]", "{step: again}]")
        + "- {step: again, tool: {kind: wait, signal: go}, next: done}\n"
    )
    execution = stack.start(stack.register(two))
    for key, said in (("a", 1), ("a", 1), ("b", 2)):
        answer = stack.http.post(
            f"/api/executions/{execution}/signals/go",
            json={"payload": said},
            headers={"Idempotency-Key": key},
        )
        assert answer.status_code == 202
    assert stack.wait_for_end(execution)["status"] == "completed"
    assert [event["data"]["payload"] for event in stack.events(execution, "signal.received")] == [
        1,
        2,
    ]


def test_a_wait_that_lasts_too_long_fails_and_can_be_routed(stack: StackClient) -> None:
    row = stack.run(GATE.replace("signal: go}", "signal: go, timeout: 100ms}"))
    assert (row["status"], row["vars"]["code"]) == ("completed", "TIMEOUT")


def test_a_timer_ends_by_itself(stack: StackClient) -> None:
    row = stack.run("""
- {step: nap, tool: {kind: wait, duration: 50ms}, next: past}
- {step: past, tool: {kind: wait, until: "2020-01-01T00:00:00Z"}, next: end}
- {step: end}
""")
    assert row["status"] == "completed"


APPROVAL = """
- step: ask
  tool: {kind: wait, approval: "Ship it?"}
  set: {ctx.by: "{{ ask.by }}", ctx.comment: "{{ ask.comment }}"}
  next: [{step: refused, when: "{{ error is defined }}"}, {step: ship}]
- {step: ship}
- {step: refused, tool: {kind: noop}, set: {ctx.why: "{{ ask.error.message }}"}}
"""


def test_an_approval_goes_on_and_a_refusal_is_the_steps_failure(stack: StackClient) -> None:
    path = stack.register(APPROVAL)
    yes, no = stack.start(path), stack.start(path)
    for execution in (yes, no):
        stack.comes(execution, "command.parked")
    said = stack.noetl("exec", "approve", yes, "ask", "--by", "ada", "--comment", "go ahead")
    assert (said.code, said.out) == (0, f"step ask of execution {yes} is approved by ada\n"), (
        said.err
    )
    assert (
        stack.noetl("exec", "reject", no, "ask", "--by", "bob", "--comment", "too risky").code == 0
    )
    assert stack.wait_for_end(yes)["vars"] == {"by": "ada", "comment": "go ahead"}
    row = stack.wait_for_end(no)
    assert (row["status"], row["vars"]) == (
        "completed",
        {"why": "the approval was refused: too risky"},
    )
    assert (stack.path(yes), stack.path(no)) == (["ask", "ship"], ["ask", "refused"])
    wrong = stack.noetl("exec", "approve", yes, "sak")
    assert (wrong.code, "no step 'sak'" in wrong.err) == (2, True)


# ---- timeouts ----------------------------------------------------------------------------------------------------------

DEAF = {
    "python": """
    kind: python
    input: {pid: "{{ workload.pid }}"}
    code: |
      import os, pathlib, signal, time
      for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
          signal.signal(number, signal.SIG_IGN)
      pathlib.Path(pid + ".part").write_text(str(os.getpid()))
      os.rename(pid + ".part", pid)
      while True:
          time.sleep(60)
""",
    "shell": """
    kind: shell
    env: {PID: "{{ workload.pid }}"}
    cmds: ["trap '' TERM INT HUP; echo $$ > $PID.part; mv $PID.part $PID; while true; do sleep 60; done"]
""",
}


@pytest.mark.parametrize("kind", DEAF)
def test_a_tool_that_ignores_sigterm_is_stopped_by_its_timeout(
    stack: StackClient, kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    step = f"- step: deaf\n  tool:{DEAF[kind]}    timeout: 1s\n"
    execution = stack.start(stack.register(step), pid=str(file))
    until(file.exists)
    row = stack.wait_for_end(execution)
    assert (row["status"], row["failure"]["code"]) == ("failed", "TIMEOUT")
    assert has_ended(int(file.read_text()))


def test_the_timeout_of_a_step_stops_its_whole_pipeline(stack: StackClient, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    step = (
        "- step: deaf\n  spec: {timeout: 1s}\n  tool:\n  - {name: first, kind: noop}\n  - name: second"
        + DEAF["python"]
    )
    row = stack.wait_for_end(stack.start(stack.register(step), pid=str(file)))
    assert (row["status"], row["failure"]["code"]) == ("failed", "TIMEOUT")
    until(lambda: has_ended(int(file.read_text())))


def test_the_timeout_of_an_execution_stops_what_runs_and_fails_it(
    stack: StackClient, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    path = stack.register(
        f"- step: deaf\n  tool:{DEAF['shell']}", executor={"spec": {"timeout": "1s"}}
    )
    row = stack.wait_for_end(stack.start(path, pid=str(file)))
    assert (row["status"], row["error"] is not None) == ("failed", True)
    assert (
        stack.events(row["execution_id"], "playbook.failed")[0]["data"]["error"]["code"]
        == "TIMEOUT"
    )
    assert has_ended(int(file.read_text()))


# ---- pause, places, priorities -----------------------------------------------------------------------------------------


def test_a_paused_execution_issues_nothing_until_it_is_resumed(stack: StackClient) -> None:
    execution = stack.start(stack.register(GATE))
    stack.comes(execution, "command.parked")
    assert stack.noetl("exec", "pause", execution).code == 0
    stack.ask(execution, "signals/go", {"payload": 1})
    stack.comes(execution, "signal.received")
    assert stack.get(f"/api/executions/{execution}/status")["status"] == "paused"
    assert stack.path(execution) == ["gate"]
    assert stack.noetl("exec", "resume", execution).code == 0
    assert stack.wait_for_end(execution)["status"] == "completed"
    types = [event["type"] for event in stack.events(execution)]
    assert types.index("playbook.resumed") < types.index("command.completed")


def test_no_more_executions_of_a_playbook_than_it_allows(stack: StackClient) -> None:
    path = stack.register(GATE, "few", executor={"spec": {"max_concurrent": 2}})
    all_ = [stack.start(path) for _ in range(5)]
    left = set(all_)

    def running() -> set[str]:
        return {each for each in left if stack.events(each, "command.parked")}

    for room in (2, 2, 2, 2, 1):
        until(lambda room=room: len(running()) == room)
        assert len(running()) == room
        ending = min(running())
        stack.ask(ending, "signals/go", {})
        assert stack.wait_for_end(ending)["status"] == "completed"
        left.remove(ending)


def test_what_is_more_urgent_is_taken_first(stack: StackClient) -> None:
    """In a pool without a worker, until everything is queued."""
    steps = "- {step: one, spec: {pool: slow, priority: %d}, tool: {kind: noop}}\n"
    order = [
        (number, stack.start(stack.register(steps % number, f"urgent/{number}")))
        for number in (1, 5, 3)
    ]
    for _, execution in order:
        stack.comes(execution, "command.issued")
    lone = stack.noetl.and_env(
        NOETL_WORKER_ID="lone", NOETL_WORKER_POOLS="slow", NOETL_WORKER_SLOTS="1"
    )
    with lone.keep_running("worker", "start"):
        ended = {number: stack.wait_for_end(execution) for number, execution in order}
    assert sorted(ended, key=lambda number: ended[number]["ended_at"]) == [5, 3, 1]


# ---- the final step ----------------------------------------------------------------------------------------------------

FINAL = """
- step: work
  tool: {kind: python, input: {how: "{{ workload.how }}"}, code: "assert how != 'bad', 'bad'"}
  next: [{step: hang, when: "{{ workload.how == 'long' }}"}]
- {step: hang, tool: {kind: wait, signal: never}}
- {step: tidy, tool: {kind: noop}, set: {ctx.saw: "{{ execution.status }}"}}
"""


@pytest.mark.parametrize(
    ("how", "status"), [("good", "completed"), ("bad", "failed"), ("long", "cancelled")]
)
def test_the_final_step_runs_once_whatever_the_outcome_and_does_not_change_it(
    stack: StackClient, how: str, status: str
) -> None:
    execution = stack.start(
        stack.register(FINAL, executor={"spec": {"final_step": "tidy"}}), how=how
    )
    if how == "long":
        stack.comes(execution, "command.parked")
        stack.ask(execution, "cancel")
    row = stack.wait_for_end(execution)
    assert row["status"] == status
    assert stack.path(execution).count("tidy") == 1
    assert row["vars"]["saw"] == status


# ---- admission ---------------------------------------------------------------------------------------------------------

ADMIT = """
- step: guard
  spec: {policy: {admit: {rules: [{when: "{{ workload.n > 5 }}", then: {allow: false, next: other}}]}}}
  set: {ctx.ran: true}
  next: done
- {step: done}
- {step: other}
"""


def test_a_step_that_is_not_admitted_is_skipped_and_goes_on_where_its_rule_says(
    stack: StackClient,
) -> None:
    admitted = stack.run(ADMIT, {"n": 1})
    assert (stack.path(admitted["execution_id"]), admitted["vars"]) == (
        ["guard", "done"],
        {"ran": True},
    )
    refused = stack.run(ADMIT, {"n": 9})
    assert (refused["status"], refused["vars"]) == ("completed", {})
    assert "other" in stack.path(refused["execution_id"])
    assert "done" not in stack.path(refused["execution_id"])
