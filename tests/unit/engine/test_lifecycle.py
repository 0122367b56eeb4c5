"""Cancelling, pausing, waiting, children, timeouts, retries of finished executions, and what `explain` says of all that."""

from typing import Any

import pytest
from msgspec.structs import replace

from noetl.engine.causes import WaitsCause
from noetl.engine.explain import explain
from noetl.engine.fold import FOLDS
from noetl.engine.interpretation import Refusal
from noetl.engine.live_summary import summarise_live
from noetl.engine.machine import advance, make_quarantined
from noetl.engine.outcome import hash_outcome
from noetl.engine.rules import RULES
from noetl.engine.state import ExecutionLimits
from noetl.model import decisions as d
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.codec import encode
from noetl.model.envelope import Envelope, make_failed_envelope
from noetl.model.errors import Failure
from noetl.model.exchange import LEASE_MICROS
from tests.play import Play, workflow

PYTHON = 'tool: {kind: python, code: "result = 1"}'
FORK = f"""
- {{step: a, next: {{spec: {{mode: inclusive}}, arcs: [{{step: x}}, {{step: y}}]}}}}
- {{step: x, {PYTHON}, next: z}}
- {{step: y, {PYTHON}, next: z}}
- {{step: z, {PYTHON}}}
"""


def play(steps: str, payload: dict[str, Any] | None = None, **document: Any) -> Play:
    return Play(workflow(steps, **document), payload).start()


def park(p: Play, step: str, reason: str, **fields: Any) -> Any:
    command = p.command(step)
    event = e.CommandParked(
        command_id=command.command_id,
        attempt=command.attempt,
        task="task_0",
        reason=reason,
        **fields,
    )
    p.report(command, event)
    return command


def test_every_event_type_is_folded() -> None:
    assert set(FOLDS) == set(e.Event.__args__)
    assert set(RULES) <= set(FOLDS)


def test_cancel_stops_everything_and_then_ends_once() -> None:
    p = play(FORK)
    p.tell(m.Cancel(request="r1", by="me"))
    assert p.state.status == "cancelling"
    assert len(p.stops) == 2
    assert p.tell(m.Cancel(request="r2")) == Refusal("known")
    running = p.queue[min(p.stops)]
    p.stops.discard(running.command_id)
    p.complete(running)
    assert p.state.status == "cancelling", "its report is recorded and routes nothing"
    p.finish_stops()
    assert p.check().state.status == "cancelled"
    assert p.tell(m.Cancel(request="r3")) == Refusal("terminal")
    assert p.types()[-1] == "execution.cancelled"


def test_a_command_that_loses_its_lease_while_stopping_has_stopped() -> None:
    p = play(f"- {{step: a, {PYTHON}}}")
    command = p.command("a")
    p.tell(m.Cancel(request="r"))
    p.tell(m.LeaseLost(command_id=command.command_id, attempt=1))
    assert p.check().state.status == "cancelled"


def test_pause_folds_reports_and_holds_what_would_be_issued() -> None:
    p = play(f"- {{step: a, {PYTHON}, next: b}}\n- {{step: b, {PYTHON}}}")
    command = p.command("a")
    p.tell(m.Pause(request="r1"))
    p.complete(command)
    assert p.path() == ["a"]
    assert not p.list_ready()
    assert explain(p.fixed, p.state, "b").verdict == "held"
    p.tell(m.Resume(request="r2"))
    p.run()
    assert p.check().path() == ["a", "b"]


def test_pause_holds_a_loop_between_chunks() -> None:
    p = play(f"- {{step: a, loop: {{in: [1, 2, 3, 4]}}, {PYTHON}}}")
    command = p.command("a")
    p.tell(m.Pause(request="r1"))
    p.chunk(command)
    assert not p.list_ready()
    p.tell(m.Resume(request="r2"))
    assert p.run().check().state.status == "completed"


def test_a_wait_holds_no_worker_and_ends_with_its_timer() -> None:
    p = play("- {step: a, tool: {kind: wait, duration: 1h}}")
    park(p, "a", "time", delay=3_600_000_000)
    assert not p.list_ready()
    assert explain(p.fixed, p.state, "a").verdict == "waiting"
    p.fire()
    again = p.command("a")
    assert again.attempt == 2
    assert again.journal.resolved == Envelope(status="ok", context={"value": None})
    p.complete(again)
    assert p.check().state.status == "completed"


def test_signals_are_kept_in_order_until_a_wait_takes_one() -> None:
    p = play("""
- {step: a, tool: {kind: wait, signal: go}, next: b}
- {step: b, tool: {kind: wait, signal: go}}
""")
    p.tell(m.Signal(name="go", request="s1", payload=1))
    p.tell(m.Signal(name="go", request="s2", payload=2))
    park(p, "a", "signal", signal="go")
    assert p.command("a").journal.resolved.context == {"value": 1}
    p.complete(p.command("a"))
    park(p, "b", "signal", signal="go")
    assert p.command("b").journal.resolved.context == {"value": 2}
    p.run()
    assert p.check().state.waiting_signals == 0


def test_a_signal_that_comes_later_wakes_the_wait_and_its_timeout_is_cleared() -> None:
    p = play("- {step: a, tool: {kind: wait, signal: go, timeout: 1h}}")
    park(p, "a", "signal", signal="go", timeout=3_600_000_000)
    assert len(p.timers) == 1
    assert "signal 'go'" in explain(p.fixed, p.state, "a").because[0]
    p.tell(m.Signal(name="go", request="s1"))
    assert not p.timers
    assert p.run().check().state.status == "completed"


def test_a_wait_that_times_out_is_the_tasks_error() -> None:
    p = play("- {step: a, tool: {kind: wait, signal: go, timeout: 1h}}")
    park(p, "a", "signal", signal="go", timeout=3_600_000_000)
    p.fire()
    assert p.command("a").journal.resolved.error.code == "TIMEOUT"


def test_a_refused_approval_is_an_error() -> None:
    p = play("- {step: a, tool: {kind: wait, approval: true}}")
    park(p, "a", "approval")
    p.tell(
        m.Signal(name="approve:a", request="s", payload={"approved": False, "comment": "no money"})
    )
    assert p.command("a").journal.resolved.error.code == "REJECTED"


@pytest.mark.parametrize(
    "payload", [None, {}, "yes", True, {"approved": "no"}, {"approved": 1}, {"approved": None}]
)
def test_a_payload_that_is_no_clear_approval_rejects(payload: Any) -> None:
    p = play("- {step: a, tool: {kind: wait, approval: true}}")
    park(p, "a", "approval")
    p.tell(m.Signal(name="approve:a", request="s", payload=payload))
    error = p.command("a").journal.resolved.error
    assert error.code == "REJECTED"
    assert "approved" in error.message


def test_an_approval_that_says_true_goes_on() -> None:
    p = play("- {step: a, tool: {kind: wait, approval: true}}")
    park(p, "a", "approval")
    p.tell(m.Signal(name="approve:a", request="s", payload={"approved": True, "by": "ada"}))
    assert p.command("a").journal.resolved.ok


def test_an_approval_says_what_is_asked_and_on_behalf_of_whom() -> None:
    p = Play(workflow("- {step: a, tool: {kind: wait, approval: {amount: 950}}}"))
    p.start(by="ada")
    park(p, "a", "approval", question={"amount": 950})
    live = summarise_live(p.check().state)
    assert live is not None
    assert live.waits_for is not None
    assert (live.waits_for.question, live.waits_for.by) == ({"amount": 950}, "ada")
    (cause, *_) = explain(p.fixed, p.state, "a").causes
    assert isinstance(cause, WaitsCause)
    assert (cause.question, cause.by) == ({"amount": 950}, "ada")
    sentence = explain(p.fixed, p.state, "a").because[0]
    assert "an approval (amount: 950) that ada asks for: `noetl exec approve" in sentence


def test_too_many_signals_are_refused() -> None:
    p = Play(
        workflow("- {step: a, tool: {kind: wait, signal: go}}"), limits=ExecutionLimits(signals=2)
    ).start()
    for number in range(2):
        p.tell(m.Signal(name="other", request=str(number)))
    assert p.tell(m.Signal(name="other", request="x")) == Refusal("full")


def test_a_retry_that_is_far_off_is_parked_with_its_tries() -> None:
    p = play(f"- {{step: a, {PYTHON}}}")
    park(p, "a", "retry", delay=60_000_000, tries=3)
    assert not p.list_ready()
    p.now += 60_000_000
    assert p.command("a").journal.tries == 3
    assert p.command("a").attempt == 2


def test_resolved_waits_go_on_when_a_pause_ends() -> None:
    p = play("- {step: a, tool: {kind: wait, signal: go}}")
    park(p, "a", "signal", signal="go")
    p.tell(m.Pause(request="p"))
    p.tell(m.Signal(name="go", request="s"))
    assert not p.list_ready()
    p.tell(m.Resume(request="r"))
    assert p.run().check().state.status == "completed"


CALL = "- {step: a, tool: {kind: playbook, path: child}, next: b}\n- {step: b}"


def ask_child(p: Play, **fields: Any) -> d.StartChild:
    park(p, "a", "child", child=e.ChildRequest(path="child", workload={"x": 1}, **fields))
    return p.children[-1]


def test_a_child_is_known_by_its_call_and_its_end_resolves_the_step() -> None:
    p = play(CALL)
    asked = ask_child(p)
    assert asked.workload == {"x": 1}
    p.tell(m.Notice(event=e.ChildStarted(call=asked.parent.call, child=m.ExecutionId("99"))))
    assert "child 99" in explain(p.fixed, p.state, "a").because[0]
    p.tell(
        m.Notice(
            event=e.ChildEnded(
                call=asked.parent.call, child=m.ExecutionId("99"), result=Envelope(status="ok")
            )
        )
    )
    assert p.run().check().path() == ["a", "b"]


def test_a_cancelled_parent_waits_for_its_children() -> None:
    p = play(CALL)
    asked = ask_child(p)
    p.tell(m.Cancel(request="r"))
    p.finish_stops()
    assert p.state.status == "cancelling"
    p.tell(m.Notice(event=e.ChildStarted(call=asked.parent.call, child=m.ExecutionId("99"))))
    assert [send.execution_id for send in p.sent] == ["99"], "it is told as soon as it is known"
    ended = make_failed_envelope(Failure(code="CHILD_CANCELLED", message=""))
    p.tell(
        m.Notice(
            event=e.ChildEnded(call=asked.parent.call, child=m.ExecutionId("99"), result=ended)
        )
    )
    assert p.check().state.status == "cancelled"


CALLS = """
- step: a
  loop: {in: [0, 1, 2], iterator: n, spec: {mode: parallel, policy: {failure: fail_fast}}}
  tool: {kind: playbook, path: child}
"""
CHILD_FAILED = make_failed_envelope(Failure(code="CHILD_FAILED", message="no"))


def child_started(p: Play, asked: d.StartChild, child: str) -> None:
    p.tell(m.Notice(event=e.ChildStarted(call=asked.parent.call, child=m.ExecutionId(child))))


def child_ended(p: Play, asked: d.StartChild, child: str, result: Envelope = CHILD_FAILED) -> None:
    p.tell(
        m.Notice(
            event=e.ChildEnded(call=asked.parent.call, child=m.ExecutionId(child), result=result)
        )
    )


def test_loop_over_children_that_stops_cancels_the_others_and_ends_when_they_have() -> None:
    p = play(CALLS)
    first, second, third = [ask_child(p) for _ in range(3)]
    child_started(p, first, "91")
    child_started(p, second, "92")
    child_ended(p, first, "91")
    p.fail(p.command("a"))
    p.finish_stops()
    assert {send.execution_id for send in p.sent} == {"92"}
    assert p.state.status == "cancelling"
    child_started(p, third, "93")
    assert {send.execution_id for send in p.sent} == {"92", "93"}, (
        "one that starts after the stop is cancelled then"
    )
    child_ended(p, second, "92")
    child_ended(p, third, "93")
    assert p.check().state.status == "failed"


def test_call_that_is_parked_after_its_loop_stopped_starts_no_child_and_is_not_waited_for() -> None:
    p = play(CALLS)
    first = ask_child(p)
    late = p.command("a")
    child_started(p, first, "91")
    child_ended(p, first, "91")
    p.fail(next(command for command in p.list_ready() if command.attempt == 2))
    asked = e.CommandParked(
        command_id=late.command_id,
        attempt=1,
        task="task_0",
        reason="child",
        child=e.ChildRequest(path="child"),
    )
    p.report(late, asked)
    p.finish_stops()
    assert len(p.children) == 1
    assert p.check().state.status == "failed"


def test_cancel_ends_an_execution_that_was_left_cancelling_with_nothing_to_wait_for() -> None:
    p = play(CALL)
    ask_child(p)
    p.tell(m.Cancel(request="r"))
    p.finish_stops()
    left = replace(
        p.state, calls={}, reason="failed", failure=Failure(code="LOOP_FAILED", message="no")
    )
    p.state = left
    p.tell(m.Cancel(request="again"))
    assert (p.state.status, p.state.failure.code) == ("failed", "LOOP_FAILED"), (
        "it ends as what it was"
    )


def test_child_whose_caller_has_waited_too_long_is_cancelled() -> None:
    p = play(CALL)
    park(p, "a", "child", child=e.ChildRequest(path="child"), timeout=1_000_000)
    child_started(p, p.children[-1], "91")
    p.fire()
    assert p.command("a").journal.resolved.error.code == "TIMEOUT"
    assert [send.execution_id for send in p.sent] == ["91"]


def test_cancel_while_children_are_being_stopped_changes_nothing() -> None:
    p = play(CALL)
    ask_child(p)
    p.tell(m.Cancel(request="r"))
    p.finish_stops()
    assert p.tell(m.Cancel(request="again", reason="parent")) == Refusal("known")


def test_a_detached_child_gives_its_id() -> None:
    p = play(CALL)
    asked = ask_child(p, wait=False)
    assert asked.detached
    p.tell(m.Notice(event=e.ChildStarted(call=asked.parent.call, child=m.ExecutionId("99"))))
    assert p.command("a").journal.resolved.context == {"value": {"execution_id": "99"}}


def test_a_child_tells_its_parent_how_it_ended() -> None:
    p = Play(workflow(f"- {{step: a, {PYTHON}}}")).start(
        parent=e.Parent(m.ExecutionId("5"), "call1"), depth=1
    )
    p.fail(p.command("a"))
    (send,) = p.sent
    assert send.execution_id == "5"
    assert send.message.event.result.error.code == "CHILD_FAILED"


def test_a_playbook_that_calls_itself_stops() -> None:
    p = Play(workflow(CALL), limits=ExecutionLimits(depth=3)).start(
        depth=3, parent=e.Parent(m.ExecutionId("5"), "c")
    )
    park(p, "a", "child", child=e.ChildRequest(path="child"))
    assert not p.children
    p.tell(p.sent[-1].message)
    assert p.command("a").journal.resolved.error.code == "RUNAWAY"
    command, runaway = p.command("a"), p.command("a").journal.resolved
    p.report(
        command,
        e.CommandFailed(command_id=command.command_id, attempt=command.attempt, result=runaway),
    )
    assert p.sent[-1].execution_id == "5"
    assert (
        p.sent[-1].message.event.result.error.code == "RUNAWAY"
    )  # the first caller is told so too


def test_a_step_timeout_stops_the_command_and_fails_the_step() -> None:
    p = play(f"""
- {{step: a, spec: {{timeout: 10s}}, {PYTHON}, next: [{{step: b, when: "{{{{ error.code == 'TIMEOUT' }}}}"}}]}}
- {{step: b}}
""")
    assert p.command("a").timeout == 10_000_000
    p.fire()
    assert len(p.stops) == 1
    p.finish_stops()
    assert p.check().path() == ["a", "b"]


def claim_command(p: Play, step: str) -> None:
    command = p.command(step)
    p.report(
        command,
        e.CommandClaimed(command_id=command.command_id, attempt=command.attempt, worker="w1"),
    )


POOLED = f"- {{step: a, spec: {{timeout: 10s, pool: gpu}}, {PYTHON}}}"


def test_a_timeout_of_a_step_that_no_worker_took_names_the_pool() -> None:
    p = play(POOLED)
    p.fire()
    p.finish_stops()
    error = p.check().find_last(e.PlaybookFailed).error
    assert error.code == "TIMEOUT"
    assert (
        "did not begin within its timeout of 10s: no worker of pool 'gpu' took its command"
        in error.message
    )


def test_a_timeout_of_a_step_that_a_worker_took_says_that_it_ran_too_long() -> None:
    p = play(POOLED)
    claim_command(p, "a")
    p.fire()
    p.finish_stops()
    assert (
        p.check().find_last(e.PlaybookFailed).error.message
        == "step a ran longer than its timeout of 10s"
    )


def test_a_timeout_of_a_loop_that_no_worker_took_names_the_pool() -> None:
    p = play(f"- {{step: a, spec: {{timeout: 10s, pool: gpu}}, loop: {{in: [1, 2, 3]}}, {PYTHON}}}")
    p.fire()
    p.finish_stops()
    assert (
        "no worker of pool 'gpu' took its command"
        in p.check().find_last(e.LoopDone).result.error.message
    )


@pytest.mark.parametrize(("taken", "said"), [(True, False), (False, True)])
def test_a_timeout_of_an_execution_names_the_step_that_no_worker_took(
    taken: bool, said: bool
) -> None:
    p = play(f"- {{step: a, spec: {{pool: gpu}}, {PYTHON}}}", executor={"spec": {"timeout": "1m"}})
    if taken:
        claim_command(p, "a")
    p.fire()
    p.finish_stops()
    message = p.check().find_last(e.PlaybookFailed).error.message
    assert ("step a did not begin: no worker of pool 'gpu' took its command" in message) == said


def test_explain_says_until_when_a_step_waits_for_a_timer() -> None:
    p = play("- {step: a, tool: {kind: wait, until: '2026-01-02T03:04:05Z'}}")
    park(p, "a", "time", until=1_767_323_045_000_000)
    assert (
        explain(p.fixed, p.state, "a")
        .because[0]
        .endswith("waits for a timer, until 2026-01-02T03:04:05.000000Z")
    )


def test_a_timer_of_a_finished_step_is_cleared_and_a_late_one_is_known() -> None:
    p = play(f"- {{step: a, spec: {{timeout: 10s}}, {PYTHON}, next: b}}\n- {{step: b, {PYTHON}}}")
    (timer,) = p.timers
    p.complete(p.command("a"))
    assert not p.timers
    assert p.tell(m.TimerDue(timer=m.TimerId(timer))) == Refusal("known")


def test_a_loop_that_times_out_is_done_with_an_error() -> None:
    p = play(f"- {{step: a, spec: {{timeout: 10s}}, loop: {{in: [1, 2, 3]}}, {PYTHON}}}")
    p.fire()
    p.finish_stops()
    assert p.check().find_last(e.LoopDone).result.error.code == "TIMEOUT"
    assert p.find_last(e.LoopDone).stats == e.Stats(3, 0, 0, 3)


def test_an_execution_timeout_fails_with_its_code() -> None:
    p = play(f"- {{step: a, {PYTHON}}}", executor={"spec": {"timeout": "1m"}})
    p.fire()
    p.finish_stops()
    assert p.check().find_last(e.PlaybookFailed).error.code == "TIMEOUT"


def test_admission_waits_for_a_place_and_gives_it_back() -> None:
    p = play(f"- {{step: a, {PYTHON}}}", executor={"spec": {"max_concurrent": 2}})
    assert p.effects == [d.AskAdmission("test", 2)]
    assert p.state.status == "pending"
    p.tell(m.Admitted())
    p.run()
    assert p.effects[-1] == d.LeaveAdmission("test")


def test_an_execution_cancelled_before_its_admission_never_runs() -> None:
    p = play("- {step: a}", executor={"spec": {"max_concurrent": 2, "final_step": "a"}})
    p.tell(m.Cancel(request="r"))
    assert p.check().state.status == "cancelled"
    assert p.path() == []


def test_a_retry_inherits_what_finished_and_runs_the_failed_step_again() -> None:
    text = workflow(f"""
- {{step: a, {PYTHON}, set: {{ctx.n: 7}}, next: b}}
- {{step: b, {PYTHON}, next: [{{step: c, args: {{k: "{{{{ a.n }}}}"}}}}]}}
- {{step: c, {PYTHON}}}
""")
    old = (
        Play(text)
        .start()
        .run(lambda c: Failure(code="X", message="") if c.step == "c" else {"n": 1})
    )
    new = Play(text)
    new.tell(
        m.Start(
            execution_id=m.ExecutionId("7"),
            path="test",
            playbook="hash",
            retry_of=m.ExecutionId("6"),
        ),
        old.state,
    )
    command = new.command("c")
    assert command.scope.args == {"k": 1}
    new.run()
    assert new.check().path() == ["c"]
    assert new.state.ctx == {"n": 7}
    assert explain(new.fixed, new.state, "a").verdict == "inherited"


def test_a_retried_loop_runs_its_failed_items_only() -> None:
    text = workflow(f"""
- {{step: each, loop: {{in: [1, 2, 3, 4], spec: {{mode: parallel, chunk: 1, policy: {{failure: {{max_failed: 0}}}}}}}}, {PYTHON}}}
""")
    old = Play(text).start()
    *rest, last = old.list_ready()
    for command in rest:
        old.chunk(command)
    old.chunk(last, failed=(3,))
    assert old.state.status == "failed"
    new = Play(text)
    new.tell(
        m.Start(
            execution_id=m.ExecutionId("7"),
            path="test",
            playbook="hash",
            retry_of=m.ExecutionId("6"),
        ),
        old.state,
    )
    started = new.find_last(e.LoopStarted).collection
    assert (started.kind, started.size, started.total) == ("failed", 1, 4)
    assert new.run().check().state.status == "completed"
    result = new.find_last(e.LoopDone).result.context
    assert result == {"row_count": 4, "stats": {"total": 4, "ok": 4, "failed": 0, "skipped": 0}}, (
        "of all that its rows have"
    )
    first = next(effect for effect in new.effects if isinstance(effect, d.AddPart))
    assert first.reference == old.find_last(e.LoopDone).result.reference, (
        "the results that stand are the old manifest's"
    )


EACH = f"""
- {{step: a, {PYTHON}, next: {{spec: {{mode: inclusive}}, arcs: [
    {{step: b, args: {{x: 1}}}}, {{step: c}}, {{step: d}}]}}}}
- {{step: c, {PYTHON}, next: [{{step: b, args: {{y: 2}}}}]}}
- {{step: d, {PYTHON}, next: [{{step: b, args: {{z: 3}}}}]}}
- {{step: b, {PYTHON}, JOIN}}
"""


def test_a_retry_runs_a_step_again_for_every_arrival_that_was_cut_off() -> None:
    text = workflow(EACH.replace("JOIN", "spec: {join: each}"))
    old = Play(text).start()
    for step in ("a", "c", "d"):
        old.complete(old.command(step))
    assert len([each for each in old.list_ready() if each.step == "b"]) == 3
    old.tell(m.Cancel(request="r"))
    old.finish_stops()
    assert old.check().state.status == "cancelled"
    new = retry_of(old, text)
    assert [each.scope.args for each in new.list_ready()] == [{"x": 1}, {"y": 2}, {"z": 3}]
    assert new.run().check().state.steps["b"].runs == 3


def test_a_retry_gives_a_join_the_arguments_of_all_arrivals_that_waited_there() -> None:
    text = workflow(EACH.replace("JOIN", "spec: {join: all}"))
    old = Play(text).start()
    for step in ("a", "c"):
        old.complete(old.command(step))
    old.run(lambda command: Failure(code="X", message=""))
    assert old.check().state.failed_step == "d"
    new = retry_of(old, text)
    assert [each.step for each in new.list_ready()] == ["d"]
    new.complete(new.command("d"))
    assert new.command("b").scope.args == {"x": 1, "y": 2, "z": 3}
    assert new.run().check().path() == ["d", "b"]


def test_a_retry_of_many_arrivals_fits_into_its_events() -> None:
    count = 300
    steps = "".join(
        f"- {{step: s{n}, next: [{{step: b, args: {{n: {n}, text: {'x' * 60}}}}}]}}\n"
        for n in range(count)
    )
    arcs = ", ".join(f"{{step: s{number}}}" for number in range(count))
    text = workflow(
        f"- {{step: a, next: {{spec: {{mode: inclusive}}, arcs: [{arcs}]}}}}\n{steps}"
        f"- {{step: b, {PYTHON}, spec: {{join: each}}}}\n"
    )
    old = Play(text).start()
    waiting = len(old.list_ready())
    assert waiting == count
    old.tell(m.Cancel(request="r"))
    old.finish_stops()
    new = retry_of(old, text)
    assert sorted(each.scope.args["n"] for each in new.list_ready()) == list(range(count))
    assert max(len(encode(event)) for event in new.log) < 16_384
    new.run().check()


def retry_of(old: Play, text: str) -> Play:
    new = Play(text)
    again = m.Start(
        execution_id=m.ExecutionId("7"), path="test", playbook="hash", retry_of=m.ExecutionId("6")
    )
    new.tell(again, old.state)
    return new


def test_retry_of_a_loop_that_completed_with_failed_items_runs_them_and_the_steps_after_it() -> (
    None
):
    text = workflow(f"""
- {{step: load, {PYTHON}, next: [{{step: each, args: {{k: 5}}}}]}}
- step: each
  loop: {{in: [1, 2, 3, 4], spec: {{mode: parallel, chunk: 1, policy: {{failure: best_effort}}, reduce: {{ctx.total: sum}}}}}}
  {PYTHON}
  next: report
- {{step: report, {PYTHON}}}
""")
    old = Play(text).start()
    old.complete(old.command("load"), {"n": 1})
    for number, command in enumerate(old.list_ready()):
        failed = (number,) if number == 2 else ()
        old.chunk(command, failed=failed, partial={} if failed else {"ctx.total": 10})
    old.run()
    assert (old.state.status, old.state.ctx) == ("completed", {"total": 30})
    new = retry_of(old, text)
    started = new.find_last(e.LoopStarted).collection
    assert (started.kind, started.size, started.total) == ("failed", 1, 4)
    command = new.command("each")
    assert command.scope.args == {"k": 5}
    new.chunk(command, partial={"ctx.total": 10})
    assert new.state.ctx == {"total": 40}, "what the other items gave is there already"
    assert "report" not in new.state.steps or new.state.steps["report"].status != "inherited"
    assert new.run().check().path() == ["each", "report"]
    assert new.find_last(e.LoopDone).result.context["stats"] == {
        "total": 4,
        "ok": 4,
        "failed": 0,
        "skipped": 0,
    }


def test_retry_of_two_loops_with_failed_items_begins_at_the_first() -> None:
    policy = "spec: {mode: parallel, chunk: 1, policy: {failure: best_effort}}"
    text = workflow(f"""
- {{step: one, loop: {{in: [1, 2], {policy}}}, {PYTHON}, next: two}}
- {{step: two, loop: {{in: [1, 2, 3], {policy}}}, {PYTHON}}}
""")
    old = Play(text).start()
    for size in (2, 3):
        for number, command in enumerate(old.list_ready()):
            old.chunk(command, failed=(number,) if number == size - 1 else ())
    new = retry_of(old, text).run()
    loops = [
        (event.step, event.collection.kind, event.collection.size)
        for event in new.log
        if isinstance(event, e.LoopStarted)
    ]
    assert loops == [("one", "failed", 1), ("two", "workload", 3)], "the second rests on the first"
    assert new.check().state.status == "completed"


def test_a_retried_loop_reduces_what_its_other_items_gave() -> None:
    policy = "policy: {failure: {max_failed: 0}}, reduce: {ctx.total: sum, ctx.seen: append}"
    text = workflow(f"""
- {{step: each, loop: {{in: [1, 2, 3, 4], spec: {{mode: parallel, chunk: 1, {policy}}}}}, {PYTHON}}}
""")
    old = Play(text).start()
    for number, command in enumerate(old.list_ready(), 1):
        failed = (number - 1,) if number > 2 else ()
        old.chunk(
            command,
            failed=failed,
            partial={} if failed else {"ctx.total": number, "ctx.seen": [number]},
        )
    for again in (3, 4):  # each retry mends one item
        assert old.state.status == "failed"
        new = Play(text)
        new.tell(
            m.Start(
                execution_id=m.ExecutionId(f"{again}"),
                path="test",
                playbook="hash",
                retry_of=m.ExecutionId("6"),
            ),
            old.state,
        )
        mended, *others = new.list_ready()
        new.chunk(mended, partial={"ctx.total": again, "ctx.seen": [again]})
        for number, command in enumerate(others, 1):
            new.chunk(command, failed=(number,))
        old = new
    assert old.check().state.ctx == {"total": 10, "seen": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("tool", "late"),
    [
        ("loop: {in: [1]}, " + PYTHON, 0),
        ("tool: {kind: wait, duration: 1h}", 0),
        (PYTHON, LEASE_MICROS),
    ],
)
def test_a_step_timeout_is_left_to_the_worker_first_where_one_holds_the_step(
    tool: str, late: int
) -> None:
    p = play(f"- {{step: a, spec: {{timeout: 10s}}, {tool}}}")
    [timer] = [effect for effect in p.effects if isinstance(effect, d.SetTimer)]
    assert timer.due - p.now == 10_000_000 + late


def test_a_quarantined_execution_issues_nothing_until_it_is_released() -> None:
    p = play(f"- {{step: a, {PYTHON}, next: b}}\n- {{step: b, {PYTHON}}}")
    p.take(advance(p.fixed, p.state, make_quarantined(p.state, "fold raised", "x", p.now)))
    p.complete(p.command("a"))
    assert not p.list_ready()
    p.tell(m.Release(request="r"))
    assert p.run().check().state.status == "completed"


def test_the_outcome_is_the_same_whatever_order_branches_finish_in() -> None:
    hashes = set()
    for last in ("x", "y"):
        p = play(FORK)
        p.complete(p.command("y" if last == "x" else "x"), 1)
        p.complete(p.command(last), 1)
        hashes.add(hash_outcome(p.run(lambda _: 1).state))
    assert len(hashes) == 1
    assert hash_outcome(play(FORK).run(lambda _: 2).state) not in hashes


def test_explain_names_the_command_that_ends_a_wait() -> None:
    p = play("""
- {step: gate, tool: {kind: wait, signal: go}}
""")
    parked = e.CommandParked(
        command_id=p.command("gate").command_id,
        attempt=1,
        task="gate",
        reason="signal",
        signal="go",
    )
    p.report(p.command("gate"), parked)
    found = explain(p.fixed, p.state, "gate")
    assert found.verdict == "waiting"
    assert found.because[0] == "task gate waits for the signal 'go': `noetl signal 7 go` sends it"
    q = play("""
- {step: ask, tool: {kind: wait, approval: yes}}
""")
    asked = e.CommandParked(
        command_id=q.command("ask").command_id, attempt=1, task="ask", reason="approval"
    )
    q.report(q.command("ask"), asked)
    assert "`noetl exec approve 7 ask` gives it" in explain(q.fixed, q.state, "ask").because[0]


def test_explain_says_that_an_execution_waits_for_a_place() -> None:
    p = Play(workflow("- {step: a}", executor={"spec": {"max_concurrent": 1}})).start()
    assert (
        explain(p.fixed, p.state, "a").because[0]
        == "the execution waits for a place: max_concurrent of test is 1"
    )


def test_explain_says_why_a_step_did_not_run() -> None:
    p = play(f"""
- {{step: a, {PYTHON}, next: [{{step: b, when: "{{{{ a.n > 3 }}}}"}}, c]}}
- {{step: b, next: d}}
- {{step: c}}
- {{step: d}}
""").run(lambda _: {"n": 1})
    b = explain(p.fixed, p.state, "b")
    assert b.verdict == "not reached"
    assert b.because == ("from a, arc to b: false (a.n > 3 = False); its guard is {{ a.n > 3 }}",)
    assert explain(p.fixed, p.state, "d").because == (
        "step b leads here and was not reached itself",
    )
    assert explain(p.fixed, p.state, "c").because == ("it was reached from a",)
    assert explain(p.fixed, p.state, "zzz").because == ("the playbook has no step zzz",)


CHAIN = f"- {{step: a, {PYTHON}, next: b}}\n- {{step: b, {PYTHON}, next: c}}\n- {{step: c}}"


def test_explain_says_that_the_execution_was_cancelled_before_a_step() -> None:
    p = play(CHAIN)
    p.tell(m.Cancel(request="r"))
    ended = "the execution was cancelled before it was reached"
    assert explain(p.fixed, p.state, "b").because == (ended, "step a leads here and is still live")
    p.finish_stops()
    assert p.check().state.status == "cancelled"
    assert explain(p.fixed, p.state, "b").because == (ended, "step a leads here and was cancelled")
    assert explain(p.fixed, p.state, "c").because == (
        ended,
        "step b leads here and was not reached itself",
    )


def test_explain_says_that_the_execution_timed_out_before_a_step() -> None:
    p = play(CHAIN, executor={"spec": {"timeout": "1m"}})
    p.fire()
    p.finish_stops()
    assert (
        explain(p.fixed, p.state, "c").because[0] == "the execution timed out before it was reached"
    )


def test_explain_says_where_the_execution_failed_before_a_step_and_not_where_an_arc_decided_it() -> (
    None
):
    p = play(f"""
- {{step: a, {PYTHON}, next: [{{step: b, when: "{{{{ a.n > 3 }}}}"}}, x]}}
- {{step: b}}
- {{step: x, {PYTHON}, next: [{{step: y, when: "{{{{ x.n > 1 }}}}"}}]}}
- {{step: y, next: z}}
- {{step: z}}
""")
    p.run(lambda command: {"n": 1} if command.step == "a" else Failure(code="BAD", message="no"))
    assert p.state.status == "failed"
    assert explain(p.fixed, p.state, "b").because == (
        "from a, arc to b: false (a.n > 3 = False); its guard is {{ a.n > 3 }}",
    )
    for step in ("y", "z"):
        assert (
            explain(p.fixed, p.state, step).because[0]
            == "the execution failed at x before it was reached"
        )


def test_explain_says_that_a_join_was_cut_short() -> None:
    p = play(FORK)
    p.complete(p.command("x"))
    p.tell(m.Cancel(request="r"))
    p.finish_stops()
    because = explain(p.fixed, p.state, "z").because
    assert because == (
        "the execution was cancelled before it was reached",
        "from x, arc to z: taken",
        "step y leads here and was cancelled",
    )


def test_explain_says_when_the_final_step_runs() -> None:
    p = play(f"- {{step: a, {PYTHON}}}\n- {{step: report}}", **FINAL)
    assert explain(p.fixed, p.state, "report").because == ("it runs once all others are over",)


def test_explain_says_that_nothing_was_reached_before_an_execution_began() -> None:
    p = play(CHAIN, executor={"spec": {"max_concurrent": 1}})
    assert p.state.status == "pending"
    p.tell(m.Cancel(request="r"))
    assert explain(p.fixed, p.state, "a").because == (
        "the execution was cancelled before it was reached",
    )


FINAL = {"executor": {"spec": {"final_step": "report", "timeout": "1h"}}}


def test_the_final_step_runs_after_a_cancel_and_the_execution_stays_cancelled() -> None:
    p = play(f"- {{step: a, {PYTHON}}}\n- {{step: report, {PYTHON}}}", **FINAL)
    p.tell(m.Cancel(request="r"))
    p.finish_stops()
    assert p.command("report").scope.status == "cancelled"
    assert p.tell(m.Cancel(request="r2")) == Refusal("known")
    assert p.run().check().state.status == "cancelled"


def test_the_final_step_runs_after_a_timeout_and_can_be_cancelled_itself() -> None:
    p = play(f"- {{step: a, {PYTHON}}}\n- {{step: report, {PYTHON}}}", **FINAL)
    p.fire()
    p.finish_stops()
    assert p.path() == ["a", "report"]
    p.tell(m.Cancel(request="r"))
    p.finish_stops()
    assert p.check().find_last(e.PlaybookFailed).error.code == "TIMEOUT"


def test_a_final_step_that_is_not_admitted_ends_the_execution() -> None:
    admit = "{rules: [{when: true, then: {allow: false}}]}"
    p = play(f"- {{step: a}}\n- {{step: report, spec: {{policy: {{admit: {admit}}}}}}}", **FINAL)
    assert p.check().path() == ["a", "report"]
    assert p.state.status == "completed"
