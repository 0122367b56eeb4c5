"""The registry, and the documented example of a tool from outside."""

import asyncio
import hashlib
import threading
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from noetl.playbook.model import BUILT_IN_TASKS
from noetl.playbook.plan import compile_plan
from noetl.playbook.validation import load, load_or_raise
from noetl.tools import registry
from noetl.tools.noop import Noop
from noetl.tools.port import Call, Success
from noetl.tools.registry import Registry
from noetl.tools.secrets import Secrets
from tests.unit.pipeline.bench import Bench, Scripted, plan_of
from tests.unit.tools.calls import call, failure, run, value

EXAMPLE = Path(__file__).parents[3] / "examples" / "outside_tool"


def test_every_kind_is_one_of_the_language() -> None:
    made = registry.make_factories()
    assert set(made) <= set(BUILT_IN_TASKS)
    assert {kind: make().kind for kind, make in made.items()} == {kind: kind for kind in made}


def test_tools_are_started_and_closed_with_the_worker() -> None:
    class CountedTool(Noop):
        told: list[str] = []

        async def start(self) -> None:
            self.told.append("start")

        async def close(self) -> None:
            self.told.append("close")

    async def live() -> None:
        tools = registry.Registry([CountedTool()])
        await tools.start("noop", "none")
        await tools.close()

    asyncio.run(live())
    assert CountedTool.told == ["start", "close"]


@pytest.fixture
def example_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the example's package were installed."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    point = EntryPoint("checksum", "noetl_checksum:Checksum", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group: [point] if group == registry.ENTRY_POINT_GROUP else [],
    )


@pytest.mark.usefixtures("example_tool")
def test_a_tool_from_outside_comes_by_entry_point(tmp_path: Path) -> None:
    tool = registry.make_registry().get("checksum")
    assert tool is not None
    file = tmp_path / "f"
    file.write_bytes(b"abc")
    found = value(run(tool.run(call({"path": str(file)}))))
    assert found == {
        "path": str(file),
        "algorithm": "sha256",
        "digest": hashlib.sha256(b"abc").hexdigest(),
        "bytes": 3,
    }
    assert failure(run(tool.run(call({"path": str(tmp_path / "none")})))).code == "FILE_UNREADABLE"


@pytest.mark.usefixtures("example_tool")
def test_its_fields_are_checked_and_its_playbook_runs() -> None:
    text = (EXAMPLE / "playbook.yml").read_text()
    kinds = registry.list_config_models(registry.load_entry_point_tools())
    assert load(text, kinds=kinds).findings == []
    wrong = load(text.replace("algorithm: sha256", "algoritm: sha256"), kinds=kinds)
    assert any("algoritm" in str(finding) for finding in wrong.findings)

    plan = compile_plan(load_or_raise(text, kinds=kinds), "hash")
    bench = Bench(more=registry.load_entry_point_tools())
    event: Any = run(
        bench.execute(plan, "sum", workload={"file": __file__})
    )  # in real time: it has a thread
    assert bench.value(event.result)["bytes"] == Path(__file__).stat().st_size


def test_keys_that_are_equal_in_json_are_refused_of_a_tool_from_outside() -> None:
    tool = Scripted(lambda call: {"found": {1: "a", "1": "b"}}, kind="lookup")
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: outside}\nworkflow:\n"
    text = head + "- {step: s, tool: {kind: lookup}}\n"
    plan = compile_plan(load_or_raise(text, kinds=registry.list_config_models([tool])), "hash")
    error = Bench(more=[tool]).run(plan).result.error
    assert error.code == "RESULT_NOT_JSON"
    assert "result['found'] has the keys 1 and '1', which are equal in JSON" in error.message


# ---- what templates see of results ------------------------------------------------------------------------------------


def test_a_handle_of_secrets_shows_its_value_to_the_worker_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NOETL_CREDENTIAL_API", '{"value": "canary-123456"}')
    steps = """
- step: s
  tool:
    - get: {kind: secrets, secret: api}
    - use: {kind: python, code: "x", input: {v: "{{ get.value }}", w: "{{ _prev.value }}"}}
"""
    seen: list[Call] = []

    def does(made: Call) -> Any:
        seen.append(made)
        return {"again": made.input["v"]}

    bench = Bench(does=does, more=[Secrets()])
    event = bench.run(plan_of(steps))
    assert seen[0].input == {"v": "canary-123456", "w": "canary-123456"}
    assert bench.value(event.result) == {"again": "***api.value***"}
    assert "canary" not in repr((bench.journal, event, bench.store._payloads))


def test_a_secret_that_is_not_there_is_a_failure() -> None:
    bench = Bench(more=[Secrets()])
    event = bench.run(plan_of("- step: s\n  tool: {kind: secrets, name: nobody}"))
    assert event.result.error.code == "SECRET_MISSING"


def test_the_body_of_an_answer_is_its_data() -> None:
    steps = """
- step: s
  tool:
    - get: {kind: python, code: "x"}
    - use: {kind: noop, input: {a: "{{ get.body.x }}", b: "{{ response.body.x }}", c: "{{ output.data.body.x }}"}}
"""
    bench = Bench(
        does=lambda _: Success({"status_code": 200, "data": {"x": 5}}, {"http": {"status": 200}})
    )
    event = bench.run(plan_of(steps))
    assert bench.value(event.result) == {"a": 5, "b": 5, "c": 5}


def test_a_statement_that_changes_rows_tells_arcs_how_many() -> None:
    bench = Bench(does=lambda _: {"rows": [], "row_count": 7, "columns": []})
    event = bench.run(plan_of("- step: s\n  tool: {kind: python, code: x}"))
    assert event.result.context["row_count"] == 7


def test_a_tool_is_made_in_a_thread_of_its_own_when_it_is_loaded() -> None:
    made_by: list[str] = []

    def make() -> Noop:
        made_by.append(threading.current_thread().name)
        return Noop()

    async def load_tool() -> Registry:
        registry = Registry(later={"noop": make})
        assert registry.is_unloaded("noop")
        await registry.load("noop")
        return registry

    registry = asyncio.run(load_tool())
    assert not registry.is_unloaded("noop")
    assert isinstance(registry.get("noop"), Noop)
    assert len(made_by) == 1
    assert made_by[0] != threading.main_thread().name


def test_what_cannot_be_made_says_so_when_it_is_asked_for() -> None:
    def make() -> Noop:
        raise RuntimeError("no library")

    registry = Registry(later={"noop": make})
    asyncio.run(registry.load("noop"))
    with pytest.raises(RuntimeError, match="no library"):
        registry.get("noop")
