"""`noetl test`: runs tests of playbooks in this process, without a server and a database."""

import asyncio
import json
import sys
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from difflib import unified_diff
from itertools import islice
from pathlib import Path
from typing import Annotated, Any
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

import typer

from noetl.cli.arguments import read_text_file
from noetl.cli.cases import (
    Case,
    CaseDifference,
    CaseOutcome,
    Suite,
    find_differences,
    find_suites,
    load_suite,
)
from noetl.cli.following import follow_execution
from noetl.cli.language import check_playbook_or_raise
from noetl.cli.output import EXIT_FAILED, add_colour, dim_text, format_count, say, say_json
from noetl.cli.story import Story
from noetl.cli.stubs import StubCredentials, Stubs, load_without_delays
from noetl.client.rows import Row
from noetl.model.approvals import approval_name
from noetl.model.commands import USUAL_POOLS
from noetl.model.errors import InvalidInput, NoetlError
from noetl.model.events import StepEnter
from noetl.playbook import durations
from noetl.runtime.egress import make_local_guard
from noetl.runtime.event_loop import run_in_loop
from noetl.runtime.kinds import check_playbook
from noetl.runtime.memory import MemoryCluster
from noetl.settings import HomeSettings, read_settings
from noetl.tools import registry
from noetl.tools.registry import Registry

MAX_ONE_LINE_CHARS = 60  # characters of a value that is shown beside its name


def register(app: typer.Typer) -> None:
    app.command("test")(run_tests)


def run_tests(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR…", help="tests, or folders searched for *.test.yaml"),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object and nothing else")
    ] = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="write a JUnit report too")
    ] = None,
) -> None:
    """Run tests of playbooks, without a server, a database or calls to other systems.

    A test says what the workload is and what tools give (stubs); then which path was taken, which values came out and how it
    ended. `python` runs as it is; any other tool needs a stub. Delays and waits take no time.

    \b
    kind: PlaybookTest
    playbook: ../weather.yaml
    tests:
      - name: heat is reported
        workload: {city: Rome}
        stubs: {fetch: {data: {temperature: 38}}}
        expect: {path: [fetch, report], ctx: {hot: true}}

    Exit code: 0 all passed, 1 some failed, 2 a test or a playbook is wrong.

    \b
    Examples:
      noetl test examples/tests
      noetl test playbooks/ --junit report.xml
      noetl test weather.test.yaml --json | jq '.tests[] | select(.passed | not)'
    """
    suites = [(file, load_suite(file)) for file in find_suites(paths)]
    show = None if as_json else _print_verdict
    outcomes = run_in_loop(_run_suites(suites, show))
    if junit is not None:
        _write_junit(junit, outcomes)
    failed = sum(not outcome.has_passed for outcome in outcomes)
    passed = len(outcomes) - failed
    if as_json:
        tests = [outcome.to_dict() for outcome in outcomes]
        say_json({"passed": passed, "failed": failed, "tests": tests})
    else:
        say(f"\n{format_count(len(outcomes), 'test')}: {passed} passed, {failed} failed")
    raise typer.Exit(EXIT_FAILED if failed else 0)


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """The outcome of one test. `problem`: why nothing could be compared."""

    file: str
    name: str
    seconds: float
    differences: list[CaseDifference] = field(default_factory=list)
    problem: str | None = None

    @property
    def has_passed(self) -> bool:
        return not self.differences and self.problem is None

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "name": self.name,
            "passed": self.has_passed,
            "seconds": round(self.seconds, 3),
            "problem": self.problem,
            "differences": [
                {
                    "what": d.what,
                    "expected": d.expected,
                    "got": d.got,
                }
                for d in self.differences
            ],
        }


# ---- running -----------------------------------------------------------------------------------------------------------


async def _run_suites(suites: list[tuple[Path, Suite]], show: Any) -> list[CaseVerdict]:
    """Run the tests one after another, because tests expect calls in their order."""
    guard = make_local_guard(read_settings(HomeSettings).home_path)
    tools, outcomes = registry.make_registry(guard=guard), list[CaseVerdict]()
    try:
        for file, suite in suites:
            sources = _load_sources(file, suite)
            for case in suite.tests:
                outcome = await _judge_case(file, sources, suite.complete_case(case), tools)
                outcomes.append(outcome)
                if show is not None:
                    show(outcome)
    finally:
        await tools.close()
    return outcomes


@dataclass(frozen=True, slots=True)
class TestedPlaybook:
    file: str
    text: str


def _load_sources(file: Path, suite: Suite) -> list[TestedPlaybook]:
    """The tested playbook, then its children. Raises if the tests name a step that none has."""
    files = [file.parent / name for name in (suite.playbook, *suite.with_)]
    sources = [TestedPlaybook(str(path), read_text_file(path)) for path in files]
    steps: set[str] = set()
    for source in sources:
        playbook = check_playbook_or_raise(source.text, source.file)
        steps.update(step.step for step in playbook.workflow)
    for case in suite.tests:
        for place in (*suite.stubs, *_list_places(case)):
            if place.partition(".")[0] not in steps:
                raise InvalidInput(
                    f"{file}: {case.name}: no step {place!r}",
                    hint=f"steps: {', '.join(sorted(steps))}",
                )
    return sources


def _list_places(case: Case) -> Iterator[str]:
    """The steps and tasks that a test names: `step` or `step.task`."""
    yield from case.stubs
    yield from case.expect.calls
    yield from case.expect.values
    yield from case.expect.path or ()


async def _judge_case(
    file: Path, sources: list[TestedPlaybook], case: Case, tools: Registry
) -> CaseVerdict:
    began = time.monotonic()
    problem: str | None = None
    differences_found: list[CaseDifference] = []
    try:
        outcome = await _execute_case(sources, case, Stubs(tools, case))
        differences_found = find_differences(case.expect, outcome)
    except MissingStub as unsaid:
        problem = str(unsaid)
    except TimeoutError:
        problem = f"it did not end within {case.timeout}"
    except NoetlError as error:
        problem = f"{error.code}: {error}"
    return CaseVerdict(
        str(file),
        case.name,
        time.monotonic() - began,
        differences_found,
        problem,
    )


class MissingStub(Exception):
    """A stub or signal is missing, so the test cannot go on."""


async def _execute_case(sources: list[TestedPlaybook], case: Case, stubs: Stubs) -> CaseOutcome:
    playbook, *children = sources
    recorder = StepRecorder()
    async with (
        asyncio.timeout(durations.parse_micros(case.timeout) / 1e6),
        MemoryCluster(
            stubs,
            StubCredentials(case.credentials),
            load_without_delays,
            _find_test_pools(sources),
            check_playbook_or_raise,
        ) as cluster,
    ):
        for child in children:
            await cluster.register(child.text, child.file)
        path = await cluster.register(playbook.text, playbook.file)
        await cluster.store_state(path, case.state)
        execution_id = await cluster.start(playbook.text, playbook.file, case.workload)
        for number, (name, payload) in enumerate(_list_signals(case)):
            await cluster.server.requests.signal(execution_id, name, f"test-{number}", payload)
        following = follow_execution(cluster, execution_id, recorder, asyncio.Event())
        story = await _follow_unless_stub_missing(following, stubs)
        values: dict[str, Any] = {}
        for name, record in story.state.steps.items():
            if name not in case.expect.values or record.result is None:
                continue
            if record.result.reference is not None:
                values[name] = await cluster.resolve(record.result.reference)
    return _make_case_outcome(story, recorder.path, values, stubs.calls)


async def _follow_unless_stub_missing(following: Coroutine[Any, Any, Story], stubs: Stubs) -> Story:
    """Follow the execution to its end, but stop when a stub is missing: the rest means nothing."""
    task = asyncio.ensure_future(following)
    try:
        await asyncio.wait((task, stubs.missing_stub), return_when=asyncio.FIRST_COMPLETED)
        if stubs.missing_stub.done():
            raise MissingStub(stubs.missing_stub.result())
        return task.result()
    finally:
        task.cancel()


def _find_test_pools(sources: list[TestedPlaybook]) -> tuple[str, ...]:
    pools: set[str] = set()
    for source in sources:
        playbook = check_playbook(source.text, source.file).playbook
        if playbook is None:
            continue
        for step in playbook.workflow:
            if step.spec.pool is not None:
                pools.add(step.spec.pool)
    return (*USUAL_POOLS, *pools)


def _list_signals(case: Case) -> "Iterator[tuple[str, Any]]":
    for sent in case.signals:
        yield sent.name, sent.payload
    for step, payload in case.approvals.items():
        yield approval_name(step), payload


def _make_case_outcome(
    story: Story,
    path: list[str],
    values: dict[str, Any],
    calls: dict[str, list[dict[str, Any]]],
) -> CaseOutcome:
    report = story.to_dict()
    steps = {name: step["status"] for name, step in report["steps"].items()}
    state: dict[str, Any] = {}
    for name, row in report["state"].items():
        if not row["unset"]:
            state[name] = row["value"]
    return CaseOutcome(
        status=report["status"],
        path=path,
        steps=steps,
        result=report["result"],
        values=values,
        ctx=report["ctx"],
        error=report["error"],
        calls=calls,
        state=state,
    )


class StepRecorder:
    """Remembers the steps in the order they were entered."""

    logs = False
    live = False

    def __init__(self) -> None:
        self.path: list[str] = []

    def __call__(self, story: Story) -> None:
        self.path += [event.step for event in story.new_events if isinstance(event, StepEnter)]

    def show_log_lines(self, rows: list[Row]) -> None: ...

    def list_last_lines(self) -> tuple[str, ...]:
        return ()


# ---- printing ----------------------------------------------------------------------------------------------------------


def _print_verdict(outcome: CaseVerdict) -> None:
    sign = add_colour("failed", "✗")
    if outcome.has_passed:
        sign = add_colour("ok", "✓")
    say(f"{sign} {outcome.file}: {outcome.name} {dim_text(f'({outcome.seconds:.2f} s)')}")
    for line in _list_problem_lines(outcome):
        say(f"    {line}")
    sys.stdout.flush()


def _list_problem_lines(outcome: CaseVerdict) -> Iterator[str]:
    if outcome.problem is not None:
        yield outcome.problem
    for difference in outcome.differences:
        expected, got = _to_json_text(difference.expected), _to_json_text(difference.got)
        if max(len(expected), len(got)) <= MAX_ONE_LINE_CHARS:
            yield f"{difference.what}: expected {expected}, got {got}"
            continue
        yield f"{difference.what}: - expected, + got"
        yield from _diff_as_json(difference.expected, difference.got)


def _diff_as_json(expected: Any, got: Any) -> Iterator[str]:
    before = json.dumps(expected, ensure_ascii=False, indent=2, default=str).splitlines()
    after = json.dumps(got, ensure_ascii=False, indent=2, default=str).splitlines()
    diff = unified_diff(before, after, lineterm="", n=2)
    for line in islice(diff, 2, None):  # without the two lines that name files
        yield f"  {line}"


def _to_json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _write_junit(file: Path, outcomes: list[CaseVerdict]) -> None:
    root = Element("testsuites", name="noetl", tests=str(len(outcomes)))
    root.set("failures", _count_failed(outcomes))
    for name in dict.fromkeys(outcome.file for outcome in outcomes):
        members = [outcome for outcome in outcomes if outcome.file == name]
        suite = SubElement(root, "testsuite", name=name, tests=str(len(members)))
        suite.set("failures", _count_failed(members))
        suite.set("time", f"{sum(outcome.seconds for outcome in members):.3f}")
        for outcome in members:
            seconds = f"{outcome.seconds:.3f}"
            case = SubElement(
                suite,
                "testcase",
                classname=name,
                name=outcome.name,
                time=seconds,
            )
            if not outcome.has_passed:
                lines = list(_list_problem_lines(outcome))
                failure = SubElement(case, "failure", message=lines[0])
                failure.text = "\n".join(lines)
    indent(root)
    ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)


def _count_failed(outcomes: list[CaseVerdict]) -> str:
    return str(sum(not outcome.has_passed for outcome in outcomes))
