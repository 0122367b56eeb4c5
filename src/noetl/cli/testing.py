"""`noetl test`: tests of playbooks, run in this process without a server and without a database."""

import asyncio
import json
import sys
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noetl.cli.loop import in_loop
from noetl.cli.output import FAILED, coloured, dim, say, say_json
from noetl.model.approvals import approval_name
from noetl.model.errors import InvalidInput, NoetlError

if TYPE_CHECKING:  # loaded by the command that runs: `--help` must not wait for it
    from noetl.cli.cases import Case, CaseDifference, CaseOutcome, Suite
    from noetl.cli.client import Row
    from noetl.cli.story import Story
    from noetl.cli.stubs import Stubs
    from noetl.tools.registry import Registry

ONE_LINE = 60  # characters of a value that is shown beside its name


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
    """Run tests of playbooks: no server, no database, nothing outside is called.

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
    from noetl.cli.cases import load_suite, suites_in

    suites = [(file, load_suite(file)) for file in suites_in(paths)]
    outcomes = in_loop(_run(suites, None if as_json else _tell))
    if junit is not None:
        _write_junit(junit, outcomes)
    failed = sum(not each.passed for each in outcomes)
    if as_json:
        say_json(
            {
                "passed": len(outcomes) - failed,
                "failed": failed,
                "tests": [each.to_dict() for each in outcomes],
            }
        )
    else:
        say(
            f"\n{len(outcomes)} test{'s' * (len(outcomes) != 1)}: {len(outcomes) - failed} passed, {failed} failed"
        )
    raise typer.Exit(FAILED if failed else 0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one test. `problem`: why it has nothing to compare."""

    file: str
    name: str
    seconds: float
    differences: "list[CaseDifference]" = field(default_factory=list)
    problem: str | None = None

    @property
    def passed(self) -> bool:
        return not self.differences and self.problem is None

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "name": self.name,
            "passed": self.passed,
            "seconds": round(self.seconds, 3),
            "problem": self.problem,
            "differences": [
                {"what": d.what, "expected": d.expected, "got": d.got} for d in self.differences
            ],
        }


# ---- running -----------------------------------------------------------------------------------------------------------


async def _run(suites: "list[tuple[Path, Suite]]", tell: Any) -> list[Outcome]:
    """One after another: what a test says of calls is by their order."""
    from noetl.tools import registry

    tools, outcomes = registry.default(), list[Outcome]()
    try:
        for file, suite in suites:
            sources = _sources(file, suite)
            for case in suite.tests:
                outcome = await _judged(file, sources, suite.complete(case), tools)
                outcomes.append(outcome)
                if tell is not None:
                    tell(outcome)
    finally:
        await tools.close()
    return outcomes


@dataclass(frozen=True, slots=True)
class TestedPlaybook:
    file: str
    text: str


def _sources(file: Path, suite: "Suite") -> list[TestedPlaybook]:
    """The playbook first, then those it calls. Every stub must be of a step that one of them has."""
    from noetl.cli.language import load_or_raise
    from noetl.cli.run import read

    found = [file.parent / name for name in (suite.playbook, *suite.with_)]
    sources = [TestedPlaybook(str(path), read(path)) for path in found]
    steps = {
        step.step for source in sources for step in load_or_raise(source.text, source.file).workflow
    }
    for case in suite.tests:
        for place in (
            *suite.stubs,
            *case.stubs,
            *case.expect.calls,
            *case.expect.values,
            *(case.expect.path or ()),
        ):
            if place.partition(".")[0] not in steps:
                raise InvalidInput(
                    f"{file}: {case.name}: no step {place!r}",
                    hint=f"steps: {', '.join(sorted(steps))}",
                )
    return sources


async def _judged(
    file: Path, sources: list[TestedPlaybook], case: "Case", tools: "Registry"
) -> Outcome:
    from noetl.cli.cases import CaseDifference, differences
    from noetl.cli.stubs import Stubs

    began, problem, found = time.monotonic(), None, list[CaseDifference]()
    try:
        found = differences(case.expect, await _ran(sources, case, Stubs(tools, case)))
    except Unsaid as unsaid:
        problem = str(unsaid)
    except TimeoutError:
        problem = f"it did not end within {case.timeout}"
    except NoetlError as error:
        problem = f"{error.code}: {error}"
    return Outcome(str(file), case.name, time.monotonic() - began, found, problem)


class Unsaid(Exception):
    """The test does not say what is needed to go on."""


async def _ran(sources: list[TestedPlaybook], case: "Case", stubs: "Stubs") -> "CaseOutcome":
    from noetl.cli.memory import MemoryCluster
    from noetl.cli.run import follow
    from noetl.cli.stubs import AnyCredentials, load_at_once
    from noetl.playbook import durations

    playbook, *children = sources
    watched = StepRecorder()
    async with (
        asyncio.timeout(durations.micros(case.timeout) / 1e6),
        MemoryCluster(
            stubs, AnyCredentials(case.credentials), load_at_once, _pools(sources)
        ) as cluster,
    ):
        for child in children:
            await cluster.register(child.text, child.file)
        await cluster.keep_state(await cluster.register(playbook.text, playbook.file), case.state)
        execution_id = await cluster.start(playbook.text, playbook.file, case.workload)
        for number, (name, payload) in enumerate(_signals(case)):
            await cluster.server.requests.signal(execution_id, name, f"test-{number}", payload)
        story = await _unless_broken(follow(cluster, execution_id, watched, asyncio.Event()), stubs)
        values = {
            name: await cluster.resolve(record.result.reference)
            for name, record in story.state.steps.items()
            if name in case.expect.values
            and record.result is not None
            and record.result.reference is not None
        }
    return _told(story, watched.path, values, stubs.calls)


async def _unless_broken(following: "Coroutine[Any, Any, Story]", stubs: "Stubs") -> "Story":
    """Once something was not said, whatever comes says nothing about the playbook."""
    task = asyncio.ensure_future(following)
    try:
        await asyncio.wait((task, stubs.broken), return_when=asyncio.FIRST_COMPLETED)
        if stubs.broken.done():
            raise Unsaid(stubs.broken.result())
        return task.result()
    finally:
        task.cancel()


def _pools(sources: list[TestedPlaybook]) -> tuple[str, ...]:
    from noetl.cli.language import load
    from noetl.model.commands import USUAL_POOLS

    playbooks = [load(source.text, source.file).playbook for source in sources]
    named = {
        step.spec.pool
        for playbook in playbooks
        if playbook is not None
        for step in playbook.workflow
    }
    return (*USUAL_POOLS, *(pool for pool in named if pool is not None))


def _signals(case: "Case") -> "Iterator[tuple[str, Any]]":
    for sent in case.signals:
        yield sent.name, sent.payload
    for step, payload in case.approvals.items():
        yield approval_name(step), payload


def _told(
    story: "Story", path: list[str], values: dict[str, Any], calls: dict[str, list[dict[str, Any]]]
) -> "CaseOutcome":
    from noetl.cli.cases import CaseOutcome

    told = story.to_dict()
    steps = {name: step["status"] for name, step in told["steps"].items()}
    state = {name: known["value"] for name, known in told["state"].items() if not known["unset"]}
    return CaseOutcome(
        told["status"],
        path,
        steps,
        told["result"],
        values,
        told["ctx"],
        told["error"],
        calls,
        state,
    )


class StepRecorder:
    """Remembers the steps in the order they were entered."""

    logs = live = False

    def __init__(self) -> None:
        self.path: list[str] = []

    def __call__(self, story: "Story") -> None:
        from noetl.model.events import StepEnter

        self.path += [event.step for event in story.new if isinstance(event, StepEnter)]

    def printed(self, rows: "list[Row]") -> None: ...

    def left(self) -> tuple[str, ...]:
        return ()


# ---- telling -----------------------------------------------------------------------------------------------------------


def _tell(outcome: Outcome) -> None:
    sign = coloured("ok", "✓") if outcome.passed else coloured("failed", "✗")
    say(f"{sign} {outcome.file}: {outcome.name} {dim(f'({outcome.seconds:.2f} s)')}")
    for line in _lines(outcome):
        say(f"    {line}")
    sys.stdout.flush()


def _lines(outcome: Outcome) -> Iterator[str]:
    if outcome.problem is not None:
        yield outcome.problem
    for each in outcome.differences:
        expected, got = _text(each.expected), _text(each.got)
        if max(len(expected), len(got)) <= ONE_LINE:
            yield f"{each.what}: expected {expected}, got {got}"
            continue
        yield f"{each.what}: - expected, + got"
        yield from _compared(each.expected, each.got)


def _compared(expected: Any, got: Any) -> Iterator[str]:
    before, after = (
        json.dumps(each, ensure_ascii=False, indent=2, default=str).splitlines()
        for each in (expected, got)
    )
    for number, line in enumerate(unified_diff(before, after, lineterm="", n=2)):
        if number >= 2:  # the names of the files
            yield f"  {line}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _write_junit(file: Path, outcomes: list[Outcome]) -> None:
    from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

    root = Element("testsuites", name="noetl", tests=str(len(outcomes)))
    root.set("failures", str(sum(not each.passed for each in outcomes)))
    for name in dict.fromkeys(each.file for each in outcomes):
        mine = [each for each in outcomes if each.file == name]
        suite = SubElement(root, "testsuite", name=name, tests=str(len(mine)))
        suite.set("failures", str(sum(not each.passed for each in mine)))
        suite.set("time", f"{sum(each.seconds for each in mine):.3f}")
        for each in mine:
            case = SubElement(
                suite, "testcase", classname=name, name=each.name, time=f"{each.seconds:.3f}"
            )
            if not each.passed:
                lines = list(_lines(each))
                SubElement(case, "failure", message=lines[0]).text = "\n".join(lines)
    indent(root)
    ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)
