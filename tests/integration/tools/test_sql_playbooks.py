"""Playbooks with SQL of the kind that people bring along, from their text to their results."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from noetl.engine.fold import evolve
from noetl.engine.state import Execution, make_empty_execution
from noetl.runtime.memory import MemoryCluster
from tests.waiting import HANG_LIMIT_S

PLAYBOOKS = Path(__file__).with_name("playbooks")


async def _play(name: str) -> tuple[Execution, dict[str, Any]]:
    """How an execution ends, and what its steps gave."""
    text = (PLAYBOOKS / name).read_text(encoding="utf-8")
    async with MemoryCluster() as cluster, asyncio.timeout(HANG_LIMIT_S):
        execution = await cluster.start(text, name, {})
        state, seq = make_empty_execution(execution), 0
        while not state.terminal:
            for recorded in await cluster.wait_for_events(execution, seq):
                state, seq = evolve(state, recorded.event), recorded.seq
        values = {}
        for step, known in state.steps.items():
            result = known.result
            if result is not None and result.reference is not None:
                values[step] = await cluster.resolve(result.reference)
        return state, values


@pytest.fixture
def play(database: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("NOETL_CREDENTIAL_LOCAL", json.dumps({"dsn": database}))
    return lambda name: asyncio.run(_play(name))


def test_values_in_functions_and_typed_literals_and_bodies(play: Any) -> None:
    state, values = play("json_build.yaml")
    assert state.status == "completed", state.error
    rows = {step: value["rows"] for step, value in values.items()}
    assert rows["a"] == [{"j": {"name": "Ada"}}]
    assert rows["b"] == [{"j": {"n": 7}}]
    assert rows["c"] == [{"j": "x_Ada7"}]
    assert rows["e"] == [{"j": "Ada", "k": 7, "l": 8, "m": "2024-01-02"}]
    assert rows["f"] == [{"a": 7, "b": "Ada"}]
    assert rows["h"] == [{"x": 1}, {"x": 2}, {"x": 3}]
    assert rows["i"] == [{"j": [{"id": 1, "n": "Ada"}]}]
    assert len(rows["j"]) == 1
    assert rows["k"] == [{"r": 3.5, "c": "Ada", "d": "Ada", "g": 7}]
    assert rows["l"][0]["arr"] == ["Ada", "b"]


def test_equal_values_are_equal_in_group_by(play: Any) -> None:
    state, values = play("groupby.yaml")
    assert state.status == "completed", state.error
    assert sorted((row["b"], row["count"]) for row in values["a"]["rows"]) == [
        (0, 3),
        (1, 4),
        (2, 3),
    ]
    assert values["b"]["rows"] == [{"b": 0, "c": 3}, {"b": 1, "c": 4}, {"b": 2, "c": 3}]


def test_quotes_doubled_by_hand_are_stored_once(play: Any) -> None:
    state, values = play("quote.yaml")
    assert state.status == "completed", state.error
    assert values["out"] == [{"a": "O'Brien", "b": {"n": "O'Brien"}, "c": " O'Brien "}]
