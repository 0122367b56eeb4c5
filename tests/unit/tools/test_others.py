"""noop, wait, playbook, workbook, the registry."""

import asyncio
from typing import Any

from noetl.model.errors import Failure
from noetl.model.ids import ExecutionId
from noetl.playbook.model import NoopTask, WorkbookCall
from noetl.tools.noop import Noop
from noetl.tools.playbook import PlaybookTool
from noetl.tools.port import Call, CallIdentity, Failed, Suspend, Tool
from noetl.tools.registry import Registry, make_registry
from noetl.tools.wait import Wait
from noetl.tools.workbook import resolve_workbook_call


def outcome(tool: Tool, config: dict[str, Any], given: dict[str, Any] | None = None) -> Any:
    identity = CallIdentity(ExecutionId("1"), "s", "t")
    return asyncio.run(
        tool.run(Call(config=config, input=given or {}, key="k", identity=identity, timeout=5))
    )


def test_noop_gives_its_input_or_null() -> None:
    assert outcome(Noop(), {}, {"a": 1}).value == {"a": 1}
    assert outcome(Noop(), {}).value is None


def test_wait_says_what_for() -> None:
    assert outcome(Wait(), {"duration": "3s"}) == Suspend("time", delay=3_000_000, timeout=5)
    assert outcome(Wait(), {"until": "1970-01-01T00:00:02Z"}) == Suspend(
        "time", until=2_000_000, timeout=5
    )
    assert outcome(Wait(), {"signal": "go"}) == Suspend("signal", signal="go", timeout=5)
    assert outcome(Wait(), {"approval": "ok?"}) == Suspend(
        "approval", signal="approve:s", timeout=5, question="ok?"
    )
    assert outcome(Wait(), {"duration": "soon"}).failure.code == "WAIT_INVALID"
    assert outcome(Wait(), {"until": "soon"}).failure.code == "WAIT_INVALID"


def test_a_child_is_asked_for() -> None:
    made = outcome(
        PlaybookTool(), {"path": "a/b", "version": 3, "return_step": "r", "wait": False}, {"k": 1}
    )
    child = made.child
    assert (child.path, child.version, child.workload, child.return_step, child.wait) == (
        "a/b",
        "3",
        {"k": 1},
        "r",
        False,
    )
    assert isinstance(outcome(PlaybookTool(), {"path": None}), Failed)


def test_workbook_calls_are_followed_but_not_in_circles() -> None:
    call = WorkbookCall(name="t", task="a", input={"x": 1})
    found = resolve_workbook_call(call, {"a": NoopTask(name="a", input={"x": 0, "y": 2})})
    assert not isinstance(found, Failure)
    assert (found.name, found.kind, found.input) == ("t", "noop", {"x": 1, "y": 2})
    missing = resolve_workbook_call(call, {})
    assert isinstance(missing, Failure)
    circle = resolve_workbook_call(call, {"a": WorkbookCall(name="a", task="a")})
    assert isinstance(circle, Failure)
    assert circle.code == "WORKBOOK_CYCLE"


def test_the_registry_knows_the_built_in_kinds_and_takes_others() -> None:
    assert {"noop", "python", "wait", "playbook"} <= set(make_registry().kinds)
    assert Registry([Noop()]).get("python") is None
