"""A failure is not handled if its error arc leads to a step that is not admitted."""

from msgspec import structs

from noetl.engine.explain import explain
from noetl.engine.fold import evolve
from noetl.engine.state import Execution
from noetl.model import events as e
from noetl.model.errors import Failure
from tests.play import Play, workflow

PYTHON = 'tool: {kind: python, code: "result = 1"}'
DENY = "spec: {policy: {admit: {rules: [{when: true, then: {allow: false%s}}]}}}"
BOOM = Failure(code="BOOM", message="as asked")


def play_failure(handlers: str, steps: str, failure: str = "fail_fast") -> Play:
    """Step `a` fails, its error arcs lead to the handlers."""
    arcs = ", ".join(
        f'{{step: {name}, when: "{{{{ error is defined }}}}"}}' for name in handlers.split()
    )
    text = workflow(f"""
- step: a
  {PYTHON}
  spec: {{policy: {{failure: {failure}}}}}
  next: {{spec: {{mode: inclusive}}, arcs: [{arcs}]}}
{steps}
""")
    return Play(text).start().run(lambda command: BOOM if command.step == "a" else 1)


def assert_failed(play: Play) -> None:
    ended = play.check().find_last(e.PlaybookFailed)
    assert (ended.step, ended.error.code) == ("a", "BOOM")
    assert (play.state.recovered, play.state.recoveries) == (0, ())
    assert [each.step for each in play.state.unfinished] == ["a"]


def test_a_failure_stands_when_its_handler_is_not_admitted() -> None:
    assert_failed(play_failure("log", f"- {{step: log, {DENY % ''}}}"))


def test_a_failure_stands_when_its_handler_is_not_admitted_and_other_branches_go_on() -> None:
    assert_failed(play_failure("log", f"- {{step: log, {DENY % ''}}}", failure="continue"))


def test_a_failure_stands_when_no_handler_is_admitted() -> None:
    assert_failed(
        play_failure("log mail", f"- {{step: log, {DENY % ''}}}\n- {{step: mail, {DENY % ''}}}")
    )


def test_a_failure_is_recovered_when_one_handler_runs() -> None:
    play = play_failure("log mail", f"- {{step: log, {DENY % ''}}}\n- {{step: mail, {PYTHON}}}")
    assert (play.check().state.status, play.state.recovered) == ("completed", 1)


def test_a_failure_is_recovered_when_the_skipped_handler_names_another_that_runs() -> None:
    play = play_failure(
        "log", f"- {{step: log, {DENY % ', next: mail'}}}\n- {{step: mail, {PYTHON}}}"
    )
    assert (play.check().state.status, play.state.recovered) == ("completed", 1)


def test_a_failure_stands_when_the_skipped_handler_names_another_that_is_skipped_too() -> None:
    assert_failed(
        play_failure(
            "log", f"- {{step: log, {DENY % ', next: mail'}}}\n- {{step: mail, {DENY % ''}}}"
        )
    )


def test_a_skip_of_an_older_log_leaves_the_failure_recovered() -> None:
    play = play_failure("log", f"- {{step: log, {DENY % ''}}}")
    until = play.log.index(play.find_last(e.StepSkipped))
    state = Execution(execution_id=play.state.execution_id)
    for event in play.log[:until]:
        state = evolve(state, event)
    old = structs.replace(play.log[until], failed_origins=())
    assert (evolve(state, old).failure, evolve(state, old).recovered) == (None, 1)
    assert evolve(state, play.log[until]).failure.code == "BOOM"


def test_explain_says_that_nothing_handled_the_failure() -> None:
    play = play_failure("log", f"- {{step: log, {DENY % ''}}}")
    assert any(
        "log was not admitted" in line for line in explain(play.fixed, play.state, "a").because
    )
