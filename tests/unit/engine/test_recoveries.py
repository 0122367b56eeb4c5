"""Failures that were handled are counted and named."""

from msgspec.structs import replace

from noetl.engine.explain import explain
from noetl.engine.fold import evolve
from noetl.engine.recoveries import MAX_RECOVERIES
from noetl.engine.state import Recovery, decode_execution, encode_execution, make_empty_execution
from noetl.engine.summary import summarise_execution
from noetl.model import events as e
from noetl.model.envelope import Envelope
from tests.play import Play, workflow

PYTHON = 'tool: {kind: python, code: "result = 1"}'
PASSED = e.Recovered(task="fetch", by="continue", code="HTTP_500", message="answered 500")


def play_handled() -> Play:
    steps = f"- {{step: a, {PYTHON}, next: [{{step: b, when: '{{{{ error is defined }}}}'}}]}}\n- {{step: b}}"
    p = Play(workflow(steps)).start()
    p.fail(p.command("a"))
    return p


def test_failure_that_an_error_arc_handles_is_recovered() -> None:
    p = play_handled()
    assert p.check().state.status == "completed"
    assert p.state.recovered == 1
    assert p.state.recoveries == (
        Recovery(step="a", by="arc to b", code="BROKEN", message="a is broken"),
    )
    assert summarise_execution(p.state)["recovered"] == 1
    assert (
        "recovered from BROKEN: a is broken (handled by arc to b)"
        in explain(p.fixed, p.state, "a").because
    )


def test_failure_that_nothing_handles_is_not_recovered() -> None:
    p = Play(workflow(f"- {{step: a, {PYTHON}, next: b}}\n- {{step: b}}")).start()
    p.fail(p.command("a"))
    assert (p.check().state.status, p.state.recovered) == ("failed", 0)


def test_errors_that_rules_let_pass_are_counted_when_the_command_ends() -> None:
    p = Play(workflow(f"- {{step: a, {PYTHON}}}")).start()
    command = p.command("a")
    p.report(
        command,
        e.CommandCompleted(
            command_id=command.command_id, attempt=1, result=Envelope(status="ok"), recovered=PASSED
        ),
    )
    assert p.check().state.recovered == 1
    assert p.state.recoveries[0] == Recovery(
        step="a", by="rule: continue", code="HTTP_500", message="answered 500", task="fetch"
    )
    assert "recovered from HTTP_500 of task fetch: answered 500 (handled by rule: continue)" in (
        explain(p.fixed, p.state, "a").because
    )


def test_what_a_journal_knows_of_is_counted_once() -> None:
    p = Play(workflow(f"- {{step: a, {PYTHON}}}")).start()
    command = p.command("a")
    entry = e.TaskDone(
        command_id=command.command_id, attempt=1, task="fetch", run=1, goto=1, result=Envelope(status="error"),
        recovered=PASSED,
    )  # fmt: skip
    p.report(command, entry)
    assert p.state.recovered == 0, "the pipeline may still fail"
    assert p.state.commands[command.command_id].journal.recovered == PASSED
    p.report(
        command,
        e.CommandCompleted(
            command_id=command.command_id, attempt=1, result=Envelope(status="ok"), recovered=PASSED
        ),
    )
    assert p.check().state.recovered == 1


def test_items_that_a_loop_lets_fail_are_recovered() -> None:
    steps = f"""
- step: each
  loop: {{in: [1, 2, 3, 4], iterator: x, spec: {{mode: parallel, chunk: 4, policy: {{failure: best_effort}}}}}}
  {PYTHON}
"""
    p = Play(workflow(steps)).start()
    p.chunk(p.list_ready()[0], failed=(1, 3))
    assert (p.check().state.status, p.state.recovered) == ("completed", 2)
    (found,) = p.state.recoveries
    assert (found.step, found.by, found.count) == ("each", "failure policy of the loop", 2)


def test_loop_that_fails_and_is_handled_is_one_failure() -> None:
    steps = f"""
- step: each
  loop: {{in: [1, 2], iterator: x, spec: {{chunk: 2}}}}
  {PYTHON}
  next: [{{step: b, when: "{{{{ error is defined }}}}"}}]
- {{step: b}}
"""
    p = Play(workflow(steps)).start()
    p.chunk(p.list_ready()[0], failed=(0,))
    assert (p.check().state.status, p.state.recovered) == ("completed", 1)


def test_many_kinds_are_all_counted_and_the_first_remembered() -> None:
    steps = "\n".join(
        f"- {{step: s{n}, {PYTHON}, next: [{{step: s{n + 1}, when: '{{{{ error is defined }}}}'}}]}}"
        for n in range(MAX_RECOVERIES + 5)
    )
    p = Play(workflow(f"{steps}\n- {{step: s{MAX_RECOVERIES + 5}}}")).start()
    for n in range(MAX_RECOVERIES + 5):
        p.fail(p.command(f"s{n}"))
    assert p.check().state.recovered == MAX_RECOVERIES + 5
    assert len(p.state.recoveries) == MAX_RECOVERIES
    assert decode_execution(encode_execution(p.state)) == p.state


def test_log_of_an_older_release_counts_nothing() -> None:
    """Its events do not say it, and what was stored of them does not either: replay must give the same."""
    state = make_empty_execution(play_handled().state.execution_id)
    for event in play_handled().log:
        state = evolve(
            state, replace(event, recovered=False) if isinstance(event, e.NextEvaluated) else event
        )
    assert (state.status, state.recovered) == ("completed", 0)


def test_state_of_an_older_release_is_read() -> None:
    state = encode_execution(make_empty_execution("7"))
    assert b"recover" not in state
    assert decode_execution(state).recovered == 0
