"""The pool of a step that is a template: rendered by the server when the first command is issued, and kept."""

from typing import Any

import pytest

from noetl.model import events as e
from noetl.playbook.validation import load
from tests.play import Play, workflow


def play(pool: str, steps: str = "", **workload: Any) -> Play:
    text = workflow(
        steps or f"- step: s\n  spec: {{pool: '{pool}'}}\n  tool: {{kind: python, code: x}}",
        workload=workload,
    )
    return Play(text).start()


def test_pool_is_rendered_from_the_workload() -> None:
    assert play("{{ workload.backend }}", backend="gpu").command("s").pool == "gpu"
    assert play("{{ backend }}-{{ job.path }}", backend="gpu").command("s").pool == "gpu-test"


def test_pool_is_rendered_from_ctx_when_the_step_starts() -> None:
    steps = """
- step: first
  tool: {kind: python, code: x}
  set: {ctx.size: large}
  next: s
- step: s
  spec: {pool: "{{ ctx.size }}"}
  loop: {in: [1, 2], iterator: x, spec: {chunk: 1}}
  tool: {kind: python, code: x}
"""
    found = play("", steps)
    found.complete(found.command("first"), 1)
    assert found.command("s").pool == "large"
    found.run().check()
    assert {
        event.pool
        for event in found.log
        if isinstance(event, e.CommandIssued) and event.step == "s"
    } == {"large"}


@pytest.mark.parametrize(
    ("pool", "value", "code", "message"),
    [
        ("{{ backend }}", "", "POOL_INVALID", "names no pool"),
        ("{{ backend }}", None, "POOL_INVALID", "gives None"),
        ("{{ backend }}", ["gpu"], "POOL_INVALID", "names no pool"),
        (
            "{{ workload.nobody }}",
            "x",
            "TEMPLATE_UNDEFINED",
            "spec.pool: 'workload.nobody' is undefined",
        ),
    ],
)
def test_pool_that_is_no_text_fails_the_step(
    pool: str, value: Any, code: str, message: str
) -> None:
    found = play(pool, backend=value)
    assert found.state.status == "failed"
    assert found.state.failure is not None
    assert found.state.failure.code == code
    assert message in found.state.failure.message
    assert found.queue == {}


@pytest.mark.parametrize(
    "pool", ["{{ nobody }}", "{{ first.rows }}", "{{ output.data }}", "{{ keychain.x.y }}"]
)
def test_pool_sees_neither_data_nor_unknown_names(pool: str) -> None:
    steps = f"- step: first\n  tool: {{kind: python, code: 'result = 1'}}\n  next: s\n- step: s\n  spec: {{pool: '{pool}'}}"
    assert "UNKNOWN_NAME" in [finding.code for finding in load(workflow(steps)).errors]
