"""Every playbook of the corpus ends as it says: status, failure, variables, results, and the path that it took."""

import asyncio
import re
from collections.abc import Iterator
from difflib import unified_diff
from typing import Any

import pytest
import uvloop
import yaml

from noetl.tools.registry import make_factories
from tests.api.process import Api
from tests.e2e.corpus import CorpusCase, Outcome, list_cases, play
from tests.e2e.paths import compare_paths, shorten_path, tell_path
from tests.postgres import server
from tests.stack import temporary_home

CASES = list_cases()
Played = dict[str, Outcome | BaseException]


def parameter(case: CorpusCase) -> Any:
    reason = case.expect.get("xfail")
    return pytest.param(
        case, id=case.name, marks=[pytest.mark.xfail(strict=True, reason=reason)] if reason else []
    )


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, api: Api) -> Iterator[Played]:
    """All cases that were asked for, in one house."""
    chosen: list[Any] = [item for item in request.session.items if item.path == request.path]
    asked = [item.callspec.params["case"] for item in chosen if hasattr(item, "callspec")]
    with (
        temporary_home("corpus", has_database=False) as home,
        pytest.MonkeyPatch.context() as patch,
        server().database() as own,
        server().database() as tables,
    ):
        patch.setenv("NOETL_HOME", str(home))
        patch.setenv("NOETL_DB_URL", own)
        for case in asked:
            for name, value in case.given.get("env", {}).items():
                patch.setenv(name, value)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            yield runner.run(play(asked, tables, api.url))


@pytest.mark.parametrize("case", [parameter(case) for case in CASES])
def test_a_playbook_ends_as_it_says(case: CorpusCase, outcomes: Played) -> None:
    outcome = outcomes[case.name]
    if isinstance(outcome, BaseException):
        raise outcome
    expect = case.expect
    told_of = {"status": outcome.story.status, "error": outcome.error}
    assert outcome.story.status == expect["status"], told_of
    error = outcome.error or {}
    assert {name: error.get(name) for name in expect.get("error", {})} == expect.get("error", {}), (
        told_of
    )
    assert "error" in expect or outcome.error is None
    assert outcome.story.state.recovered == expect.get("recovered", 0)
    assert outcome.story.ctx == expect.get("ctx", {})
    assert outcome.steps == {name: _step(stated) for name, stated in expect["steps"].items()}
    for path, value in expect["result"].items():
        assert outcome.value(path) == value, path
    for step, delays in expect.get("delays", {}).items():
        assert outcome.delays(step) == delays
    for secret in expect.get("hidden", []):
        assert secret.encode() not in outcome.readable_bytes
    _same_path(expect["path"], outcome)


def _step(stated: Any) -> Any:
    return {"status": stated, "runs": 1} if isinstance(stated, str) else stated


def _same_path(path: list[Any], outcome: Outcome) -> None:
    stated, happened = compare_paths(path, tell_path(outcome.events))
    if stated != happened:
        differ = "\n".join(unified_diff(stated, happened, "stated", "happened", lineterm="", n=2))
        whole = yaml.safe_dump(
            {"path": shorten_path([line.text for line in tell_path(outcome.events)])},
            allow_unicode=True,
        )
        pytest.fail(f"another path:\n{differ}\n\nas it happened:\n{whole}", pytrace=False)


def test_paths_of_children_are_their_own() -> None:
    paths = [yaml.safe_load(child)["metadata"]["path"] for case in CASES for child in case.children]
    assert sorted(set(paths)) == sorted(paths)
    assert not set(paths) & {case.name for case in CASES}


def test_every_kind_of_tool_is_played() -> None:
    played = {kind for case in CASES for kind in re.findall(r"kind: (\w+)", case.playbook)}
    assert {*make_factories(), "workbook"} <= played


def test_there_are_enough() -> None:
    assert len(CASES) >= 150
