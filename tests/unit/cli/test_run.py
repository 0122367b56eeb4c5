"""What `noetl run` takes and what it says, without running anything."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from noetl.cli import arguments, make_application, payloads
from noetl.cli.following import follow_execution
from noetl.cli.language import warn_of_unknown_names
from noetl.cli.output import format_error
from noetl.cli.story import (
    MAX_INLINE_BYTES,
    MAX_TABLE_ROWS,
    Story,
    describe_event,
    list_step_lines,
    print_end,
)
from noetl.log.events.port import RecordedEvent
from noetl.model import events as e
from noetl.model.envelope import Envelope
from noetl.model.errors import Failure, InvalidInput, NotFound, Unavailable
from noetl.model.ids import ActivationId, CommandId, ExecutionId, RefId
from noetl.model.reference import Reference
from noetl.playbook import text as playbook_text
from noetl.runtime.memory import MemoryCluster
from noetl.tools.port import Call
from noetl.tools.registry import Registry, make_registry
from tests.unit.pipeline.bench import HEADER, Scripted
from tests.waiting import run_virtually

ID, A = ExecutionId("42"), ActivationId("a")


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        ([], {"limit": 1, "db": {"host": "h"}}),
        (["limit=20"], {"limit": 20, "db": {"host": "h"}}),
        (["limit='20'"], {"limit": "20", "db": {"host": "h"}}),
        (["limit=null"], {"limit": None, "db": {"host": "h"}}),
        (["name=a=b"], {"limit": 1, "db": {"host": "h"}, "name": "a=b"}),
        (["db.port=5432"], {"limit": 1, "db": {"host": "h", "port": 5432}}),
        (["cities=[Cairo, Lima]"], {"limit": 1, "db": {"host": "h"}, "cities": ["Cairo", "Lima"]}),
        (["on=yes"], {"limit": 1, "db": {"host": "h"}, "on": "yes"}),
        (["text="], {"limit": 1, "db": {"host": "h"}, "text": None}),
    ],
)
def test_values_given_win_over_the_payload(
    assignments: list[str], expected: dict[str, Any]
) -> None:
    assert payloads.merge_assignments({"limit": 1, "db": {"host": "h"}}, assignments) == expected


@pytest.mark.parametrize(
    "assignment", ["", "limit", "=3", "a..b=1", "x={a: ", "x=!!python/object:a 1"]
)
def test_what_is_no_assignment_is_refused(assignment: str) -> None:
    with pytest.raises(InvalidInput):
        payloads.merge_assignments({}, [assignment])


def test_a_payload_is_yaml_or_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    (tmp_path / "b.yaml").write_text("a: [1]\n")
    (tmp_path / "c.yaml").write_text("- 1\n")
    assert payloads.read_payload(tmp_path / "a.json") == {"a": 1}
    assert payloads.read_payload(tmp_path / "b.yaml") == {"a": [1]}
    with pytest.raises(InvalidInput, match="mapping"):
        payloads.read_payload(tmp_path / "c.yaml")


def test_a_missing_file_is_a_sentence_with_a_guess(tmp_path: Path) -> None:
    (tmp_path / "hello.yaml").touch()
    with pytest.raises(InvalidInput) as refused:
        arguments.read_text_file(tmp_path / "helo.yaml")
    assert "hello.yaml" in format_error(refused.value)
    assert format_error(NotFound("no such thing")) == "error: no such thing"


WORKLOAD = """
metadata: {name: x}
workload: {limit: 1, db: {host: h, port: 5432}}
workflow:
  - step: s
    set: {ctx.a: "{{ workload.only_used | default(1) }}", ctx.b: "{{ workload.db.user | default('') }}"}
"""


@pytest.mark.parametrize(
    ("assignment", "warning"),
    [
        ("limit=2", ""),
        ("only_used=2", ""),
        ("db.port=1", ""),
        ("db.user=u", ""),
        ("limit.deep=1", ""),
        ("limt=2", "warning: --set limt: the playbook has no workload.limt: did you mean limit?\n"),
        (
            "db.prt=2",
            "warning: --set db.prt: the playbook has no workload.db.prt: did you mean db.port?\n",
        ),
        ("quite_other=2", "warning: --set quite_other: the playbook has no workload.quite_other\n"),
        ("only=2", "warning: --set only: the playbook has no workload.only\n"),
    ],
)
def test_a_value_that_the_playbook_does_not_know_is_warned_of(
    assignment: str, warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_of_unknown_names(WORKLOAD, [assignment])
    assert capsys.readouterr() == ("", warning)
    warn_of_unknown_names("no: playbook", [assignment])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "code", "finding"),
    [
        (
            "metadata: {name: x}\nworkflow:\n  - step: a\n    next: 5\n",
            "PLAYBOOK_INVALID",
            "BAD_TYPE",
        ),
        ("a: [", "PLAYBOOK_INVALID", "YAML_SYNTAX"),
        (None, "INVALID_INPUT", None),
    ],
)
def test_what_cannot_begin_is_an_object_too(
    tmp_path: Path, text: str | None, code: str, finding: str | None
) -> None:
    file = tmp_path / "bad.yaml"
    if text is not None:
        file.write_text(text)
    done = CliRunner().invoke(make_application(), ["run", "--memory", str(file), "--json"])
    assert done.exit_code == 2
    said = json.loads(done.stdout)
    assert list(said) == [
        "execution_id", "status", "error", "result", "ctx", "steps", "workload", "children", "cause"
    ]  # fmt: skip
    assert (said["execution_id"], said["status"], said["error"]["code"]) == (None, "failed", code)
    assert [each["code"] for each in said["error"]["findings"]][:1] == (
        [finding] if finding else []
    )
    assert "\n" not in said["error"]["message"]
    assert "error: " in done.stderr


def test_help_names_every_command() -> None:
    said = CliRunner().invoke(make_application(), ["--help"]).output
    assert all(command in said for command in ("run", "validate", "schema", "convert", "graph"))


# ---- the story ---------------------------------------------------------------------------------------------------------

RESULT = Reference(
    ref_id=RefId("1"), type="memory", uri="noetl://execution/42/result/greet/k", bytes=3
)
LARGE = Reference(
    ref_id=RefId("2"),
    type="memory",
    uri="noetl://execution/42/result/greet/l",
    bytes=MAX_INLINE_BYTES + 1,
)


def story(*events: e.Event) -> Story:
    told = Story(ID)
    begin: Sequence[e.Event] = (
        e.PlaybookInitialized(execution_id=ID, path="p", playbook="h", at=1_000_000),
        e.WorkflowInitialized(at=1_000_000),
        e.StepEnter(step="greet", activation=A, run=1, cause="admitted", at=1_500_000),
    )
    told.add_events(
        [RecordedEvent(ID, 0, seq, 1, event) for seq, event in enumerate((*begin, *events), 1)]
    )
    return told


def make_end_events(result: Envelope) -> list[e.Event]:
    return [
        e.CallDone(step="greet", activation=A, result=result, at=2_000_000),
        e.StepExit(step="greet", activation=A, result=result, set={"ctx.n": 1}, at=2_000_000),
        e.NextEvaluated(step="greet", activation=A, event="call.done", at=2_000_000),
    ]


async def resolve(reference: Reference) -> Any:
    assert reference == RESULT
    return "hi"


def settle_story(told: Story) -> dict[str, Any]:
    import asyncio

    asyncio.run(told.read_results(resolve))
    return json.loads(json.dumps(told.to_dict()))


def test_a_running_step_is_running() -> None:
    told = story()
    assert not told.is_finished
    assert told.list_steps() == {"greet": ("running", 1, "")}


def test_a_completed_execution_shows_its_last_result() -> None:
    done = Envelope(status="ok", reference=RESULT)
    told = story(
        *make_end_events(done), e.PlaybookCompleted(step="greet", result=done, at=2_000_000)
    )
    assert settle_story(told) == {
        "execution_id": "42",
        "status": "completed",
        "recovered": 0,
        "error": None,
        "result": "hi",
        "ctx": {"n": 1},
        "state": {},
        "steps": {
            "greet": {
                "status": "completed",
                "runs": 1,
                "started_at": "1970-01-01T00:00:01.500000Z",
                "ended_at": "1970-01-01T00:00:02.000000Z",
                "seconds": 0.5,
                "loop": None,
            }
        },
        "workload": {},
        "children": {"total": 0, "counts": {}, "newest": []},
        "cause": None,
    }


def test_a_large_result_is_shown_by_reference() -> None:
    done = Envelope(status="ok", reference=LARGE)
    told = story(
        *make_end_events(done), e.PlaybookCompleted(step="greet", result=done, at=2_000_000)
    )
    assert settle_story(told)["result"]["reference"]["uri"] == LARGE.uri


def test_a_failed_execution_names_cause_and_step() -> None:
    failure = Failure(code="PYTHON_ERROR", message="no")
    broken = Envelope(status="error", error=failure)
    told = story(
        e.CallError(step="greet", activation=A, result=broken, at=2_000_000),
        e.StepExit(step="greet", activation=A, result=broken, at=2_000_000),
        e.NextEvaluated(step="greet", activation=A, event="call.error", at=2_000_000),
        e.PlaybookFailed(error=failure, step="greet", at=2_000_000),
    )
    said = settle_story(told)
    assert said["status"] == "failed"
    assert said["error"] == {"code": "PYTHON_ERROR", "message": "no", "step": "greet"}
    assert (said["steps"]["greet"]["status"], said["steps"]["greet"]["seconds"]) == ("failed", 0.5)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (e.StepEnter(step="greet", activation=A, run=1, cause="c"), "step=greet"),
        (
            e.StepExit(step="greet", activation=A, result=Envelope(status="ok")),
            "step=greet  status=ok",
        ),
        (
            e.NextEvaluated(
                step="a",
                activation=A,
                event="call.done",
                verdicts=(e.Verdict("b", "false", {"a.n": 1}), e.Verdict("c", "taken")),
            ),
            "step=a  arcs=b false (a.n = 1); c taken",
        ),
        (
            e.LoopDone(
                step="a", activation=A, stats=e.Stats(3, 2, 1, 0), result=Envelope(status="ok")
            ),
            'step=a  status=ok  stats={"total":3,"ok":2,"failed":1,"skipped":0}',
        ),
        (e.PlaybookFailed(error=Failure(code="X", message="no"), step="a"), "step=a  error=X: no"),
        (e.ExecutionQuarantined(error="boom", cause="c"), "error=boom"),
        (
            e.CommandParked(
                command_id=CommandId("c"),
                attempt=1,
                task="t",
                reason="signal",
                signal="go",
                step="a",
            ),
            "step=a  task=t  reason=signal  signal=go",
        ),
        (
            e.CommandIssued(
                command_id=CommandId("c"), step="a", activation=A, kind="run", pool="cpu"
            ),
            "step=a  kind=run",
        ),
    ],
    ids=lambda value: getattr(value, "type", None),
)
def test_an_event_in_a_few_words(event: e.Event, words: str) -> None:
    assert describe_event(event) == words


def test_suggestions_name_the_execution_by_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    failure = Failure(code="PYTHON_ERROR", message="no")
    broken = Envelope(status="error", error=failure)
    failed = story(
        e.CallError(step="greet", activation=A, result=broken, at=2_000_000),
        e.PlaybookFailed(error=failure, step="greet", at=2_000_000),
    )
    for told in story(), failed:
        print_end(told, durable=True)
        said = capsys.readouterr().out
        assert "@latest" not in said
        assert re.search(r"look closer: .*noetl exec (get 42|explain 42 greet)", said)


def test_rows_are_told_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    told = story()
    told.result = {
        "rows": [{"n": 1, "x": None}, {"n": 22, "x": {"a": True}}],
        "row_count": 2,
        "columns": ["n", "x"],
    }
    print_end(told, durable=False)
    assert capsys.readouterr().out.endswith('\nn   x\n1\n22  {"a":true}\n')
    told.result["rows"] *= MAX_TABLE_ROWS
    print_end(told, durable=False)
    assert f"… {MAX_TABLE_ROWS} more rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    "result",
    [
        {"preview": [{"x": 1}]},
        {"preview": "a word"},
        {"rows": 5, "columns": ["a"]},
        {"rows": "abc", "columns": ["a"]},
        {"rows": [{"a": 1}], "columns": [["a"]]},
        {"rows": [1, 2], "columns": ["a"]},
    ],
)
def test_a_result_that_only_resembles_rows_is_printed_as_json(
    result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    told = story()
    told.result = result
    print_end(told, durable=False)
    _, brace, text = capsys.readouterr().out.partition("{")
    assert json.loads(brace + text) == result


def test_first_rows_of_a_large_result_are_told_as_a_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    large = replace(LARGE, rows=MAX_TABLE_ROWS + 7)
    done = Envelope(status="ok", reference=large)
    told = story(
        *make_end_events(done), e.PlaybookCompleted(step="greet", result=done, at=2_000_000)
    )

    async def look(execution_id: ExecutionId, step: str, rows: int) -> dict[str, Any]:
        return {"preview": {"rows": [{"n": number} for number in range(rows)]}}

    asyncio.run(told.read_results(resolve, look))
    print_end(told, durable=False)
    said = capsys.readouterr().out
    assert "\nn\n0\n1\n" in said
    assert said.endswith("… 7 more rows\n")
    assert told.to_dict()["result"]["preview"][:1] == [{"n": 0}]


# ---- progress ------------------------------------------------------------------------------------------------------------


class Watching:
    """A person at a terminal, who lets the tool go on once it was seen how far it is."""

    logs, live = False, True

    def __init__(self) -> None:
        self.seen = asyncio.Event()
        self.lines: list[str] = []

    def __call__(self, story: Story) -> None:
        self.lines = list_step_lines(story)
        if any(line.endswith("spark 12/48 tasks") for line in self.lines):
            self.seen.set()

    def show_log_lines(self, rows: list[Any]) -> None: ...

    def list_last_lines(self) -> Sequence[str]:
        return ()


def test_how_far_a_tool_is_stands_beside_its_step_while_it_runs() -> None:
    watching = Watching()

    async def run_slowly(call: Call) -> int:
        call.progress("spark 12/48 tasks")
        await watching.seen.wait()
        return 1

    async def follow_run() -> Story:
        async with MemoryCluster(Registry([Scripted(run_slowly)])) as cluster:
            text = HEADER + "workflow:\n- step: totals\n  tool: {kind: python, code: x}\n"
            execution_id = await cluster.start(text, "a.yaml", {})
            return await follow_execution(cluster, execution_id, watching, asyncio.Event())

    story = run_virtually(follow_run())
    assert story.status == "completed"
    assert not any("tasks" in line for line in watching.lines)


# ---- outages -------------------------------------------------------------------------------------------------------------


class OutageCluster:
    """A cluster that does not answer so many times once its first events were read."""

    def __init__(self, cluster: MemoryCluster, failures: int, is_over: asyncio.Event) -> None:
        self._cluster = cluster
        self._failures = failures
        self._is_over = is_over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def wait_for_events(self, execution_id: ExecutionId, after: int) -> list[RecordedEvent]:
        if after and self._failures:
            self._failures -= 1
            if not self._failures:
                self._is_over.set()
            raise Unavailable("no server answers")
        return await self._cluster.wait_for_events(execution_id, after)


def follow_through_outage(failures: int) -> Story:
    is_over = asyncio.Event()

    async def run_until_over(call: Call) -> int:
        await is_over.wait()
        return 1

    async def follow_run() -> Story:
        async with MemoryCluster(Registry([Scripted(run_until_over)])) as cluster:
            text = HEADER + "workflow:\n- step: one\n  tool: {kind: python, code: x}\n"
            execution_id = await cluster.start(text, "a.yaml", {})
            source = OutageCluster(cluster, failures, is_over)
            return await follow_execution(source, execution_id, Watching(), asyncio.Event())

    story = run_virtually(follow_run())
    assert isinstance(story, Story)
    return story


def test_execution_is_followed_through_an_outage(capsys: pytest.CaptureFixture[str]) -> None:
    assert follow_through_outage(3).status == "completed"
    assert capsys.readouterr().err == "no server answers; trying again for 30 s\n"


def test_execution_lives_on_when_the_server_stays_away() -> None:
    with pytest.raises(Unavailable, match="no server answers") as raised:
        follow_through_outage(1_000_000)
    said = format_error(raised.value)
    assert "is not lost: it goes on with its server" in said
    assert re.search(r"noetl exec events \d+ --follow", said)


def test_all_parts_of_one_process_read_a_playbook_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str | bytes] = []
    read_document = playbook_text.read_document

    def count_read(source: str | bytes) -> Any:
        reads.append(source)
        return read_document(source)

    monkeypatch.setattr(playbook_text, "read_document", count_read)
    text = HEADER + "workflow:\n- step: read_once\n  tool: {kind: noop}\n"

    async def run_twice() -> None:
        async with MemoryCluster(make_registry()) as cluster:
            for _ in range(2):
                execution_id = await cluster.start(text, "a.yaml", {})
                story = await follow_execution(cluster, execution_id, Watching(), asyncio.Event())
                assert story.status == "completed"

    run_virtually(run_twice())
    assert reads == [text]
