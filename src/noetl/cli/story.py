"""An execution for people: its steps while it runs, and how it ended. The engine folds its events."""

import shlex
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from noetl.cli.details import (
    format_loop_progress,
    format_seconds,
    print_cause,
    print_children,
    print_workload,
)
from noetl.cli.output import (
    adapt_commands,
    add_colour,
    dim_text,
    format_log_line,
    format_recovery,
    format_status,
    print_log_lines,
    print_table,
    shorten_text,
)
from noetl.cli.terminal import guard_streams, make_printable
from noetl.client.rows import Row
from noetl.engine import playbook_state
from noetl.engine.fold import evolve
from noetl.engine.state import Execution, LoopState, make_empty_execution
from noetl.log.events.port import RecordedEvent
from noetl.model.errors import Failure, NotFound
from noetl.model.events import ChildEnded, ChildStarted, Event, PlaybookCompleted
from noetl.model.ids import ActivationId, ExecutionId, Micros
from noetl.model.reference import Reference
from noetl.playbook.assignments import is_reference, read_link, unwrap_links
from noetl.server.executions.details import MAX_LISTED_CHILDREN
from noetl.server.executions.steps import summarize_steps
from noetl.server.executions.views import LoopView, StepView

MAX_KEPT_LINES = 1_000  # lines printed by steps that a terminal keeps
MAX_LINES_BELOW_STEPS = 12  # of these lines, the number shown below the list of steps
MAX_INLINE_BYTES = 64 * 1024  # bytes; a larger result is shown by reference
MAX_INLINE_ROWS = 1_000  # rows; the limit for the result of a loop, which has no size in bytes
MAX_TABLE_ROWS = 50  # rows of a result shown at the end

_SIGNS = {
    "completed": "✓",
    "failed": "✗",
    "cancelled": "■",
    "skipped": "–",
    "running": "●",
    "waiting": "·",
}
_REASONS = {
    "retry": "its next try",
    "time": "its moment",
    "signal": "signal",
    "approval": "approval",
    "child": "its child",
}

Resolve = Callable[[Reference], Awaitable[Any]]
# Takes a step and a number of rows; returns these first rows of its result.
ReadPreview = Callable[[ExecutionId, str, int], Awaitable[dict[str, Any]]]


class Story:
    """The recorded part of one execution."""

    def __init__(self, execution_id: ExecutionId) -> None:
        self.state: Execution = make_empty_execution(execution_id)
        self.last_seq = 0
        self.event_count = 0
        self.new_events: list[Event] = []  # events added last
        self.began_at = 0
        self.result: Any = None
        self.preview: Any = None  # the first rows of a large result
        self.ctx: dict[str, Any] = {}
        self.tool_progress: dict[str, str] = {}  # progress reported by tools, by step
        self.workload: dict[str, Any] = {}
        self.cause: dict[str, Any] | None = None
        self.children: dict[str, dict[str, Any]] = {}  # by the call that started them
        self._last_event: Event | None = None

    def add_events(self, recorded: list[RecordedEvent]) -> None:
        self.new_events = [row.event for row in recorded]
        for row in recorded:
            self.began_at = self.began_at or row.event.at
            self._add_child(row.event)
            self.state = evolve(self.state, row.event)
            self.last_seq, self._last_event = row.seq, row.event
        self.event_count += len(recorded)

    def _add_child(self, event: Event) -> None:
        """Called before the event is folded: the state still has the request of the child."""
        if isinstance(event, ChildStarted):
            self.children[event.call] = {
                "execution_id": event.child,
                "path": self._find_requested_path(event.call),
                "status": "running",
                "recovered": 0,
                "error": None,
            }
        elif isinstance(event, ChildEnded) and event.call in self.children:
            self.children[event.call] |= {
                "status": _find_child_status(event),
                "recovered": event.recovered,
                "error": event.result.error and event.result.error.message,
            }

    def _find_requested_path(self, call: str) -> str | None:
        for command in self.state.commands.values():
            wait = command.parked
            if wait is not None and wait.call == call:
                return None if wait.request is None else wait.request.path
        return None

    def list_children(self) -> dict[str, Any]:
        """The children in the shape of the API."""
        newest = list(reversed(self.children.values()))
        counts = Counter(child["status"] for child in newest)
        return {
            "total": len(newest),
            "counts": dict(counts),
            "newest": newest[:MAX_LISTED_CHILDREN],
        }

    @property
    def is_finished(self) -> bool:
        return self.state.terminal or self.state.quarantined is not None

    @property
    def status(self) -> str:
        return "quarantined" if self.state.quarantined is not None else self.state.status

    @property
    def failure(self) -> Failure | None:
        if self.state.quarantined is not None:
            return Failure(code="QUARANTINED", message=self.state.quarantined)
        return self.state.failure if self.status == "failed" else None

    def list_steps(self) -> dict[str, tuple[str, int, str]]:
        """Status, number of activations and progress by step, in the order in which steps began."""
        steps = summarize_steps(self.state)
        progress = {name: _format_loop_stats(seen.loop) for name, seen in steps.items()}
        for activation in self.state.activations.values():
            step = activation.step
            counts = self._format_progress(activation.entered_at, activation.loop)
            words = (counts or self._describe_wait(activation.id), self.tool_progress.get(step, ""))
            progress[step] = ", ".join(filter(None, words))
        return {name: (seen.status, seen.runs, progress[name]) for name, seen in steps.items()}

    def _format_progress(self, since: int, loop: LoopState | None) -> str:
        """The done items of a loop, its size, and the items per second."""
        if loop is None:
            return ""
        done = loop.ok + loop.failed + loop.skipped + loop.ahead
        seconds = (self.state.last_at - since) / 1e6
        text = f"{done} of {loop.size or '…'}"
        if done and seconds > 0.5:
            text += f", {done / seconds:.0f}/s"
        if loop.failed:
            text += f", {loop.failed} failed"
        return text

    def _describe_wait(self, activation: ActivationId) -> str:
        for command in self.state.commands.values():
            wait = command.parked
            if command.activation != activation or wait is None:
                continue
            reason = _REASONS.get(wait.reason, wait.reason)
            signal = f" {wait.signal}" if wait.signal else ""
            return f"waits for {reason}{signal}"
        return ""

    async def read_results(self, resolve: Resolve, look: ReadPreview | None = None) -> None:
        """Read the data for the last lines: the last result or its rows, and `ctx` references."""
        last = self._last_event
        if isinstance(last, PlaybookCompleted) and last.result is not None:
            reference = last.result.reference
            if reference is not None:
                self.result = await _read_value(reference, resolve)
                if look is not None and last.step is not None and _is_large(reference):
                    self.preview = await self._read_preview(look, last.step)
                    self.result["preview"] = self.preview
        for name, value in self.state.ctx.items():
            self.ctx[name] = await _read_ctx_value(value, resolve)

    async def _read_preview(self, look: ReadPreview, step: str) -> Any:
        result = await look(self.state.execution_id, step, MAX_TABLE_ROWS)
        preview = result["preview"]
        return None if preview is None else preview["rows"]

    def to_dict(self) -> dict[str, Any]:
        """The output of `noetl run --json`."""
        failure = self.failure
        error: dict[str, Any] | None = None
        if failure is not None:
            error = {
                "code": failure.code,
                "message": failure.message,
                "step": self.state.failed_step,
            }
        return {
            "execution_id": self.state.execution_id,
            "status": self.status,
            "recovered": self.state.recovered,
            "error": error,
            "result": self.result,
            "ctx": self.ctx,
            "state": playbook_state.describe_playbook_state(self.state),
            "steps": msgspec.to_builtins(summarize_steps(self.state)),
            "workload": self.workload,
            "children": self.list_children(),
            "cause": self.cause,
        }


def _find_child_status(event: ChildEnded) -> str:
    error = event.result.error
    if error is None:
        return "completed"
    if error.code == "CHILD_CANCELLED":
        return "cancelled"
    return "failed"


def _format_loop_stats(loop: LoopView | None) -> str:
    if loop is None:
        return ""
    return format_loop_progress(msgspec.structs.asdict(loop))


async def _read_ctx_value(value: Any, resolve: Resolve) -> Any:
    if not is_reference(value):
        return unwrap_links(value)
    return await _read_value(read_link(value), resolve)


def _is_large(reference: Reference) -> bool:
    if reference.bytes is None:
        return (reference.rows or 0) > MAX_INLINE_ROWS
    return reference.bytes > MAX_INLINE_BYTES


async def _read_value(reference: Reference, resolve: Resolve) -> Any:
    if _is_large(reference):
        return {"reference": msgspec.to_builtins(reference)}
    try:
        return await resolve(reference)
    except NotFound:
        return {"reference": msgspec.to_builtins(reference)}


# ---- on the screen -----------------------------------------------------------------------------------------------------


class SilentDisplay:
    """Shows nothing of the execution. Lines of its steps go to stderr, since stdout is JSON."""

    live = False

    def __init__(self, logs: bool) -> None:
        self.logs = logs

    def __call__(self, story: Story) -> None: ...

    def show_log_lines(self, rows: list[Row]) -> None:
        print_log_lines(rows, to=sys.stderr)

    def list_last_lines(self) -> Sequence[str]:
        return ()


class StepDisplay:
    """Draws the list of steps again as it changes, with the last lines they printed below it.

    Outside a terminal it prints the lines as they come, and the list at the end.
    """

    def __init__(self, logs: bool) -> None:
        self.logs = logs
        self._screen: Any = None
        if sys.stdout.isatty():
            # It takes as long to load as a short playbook takes to run.
            from rich import live, text

            self._screen = live.Live(transient=True, refresh_per_second=8)
            self._make_text = text.Text.from_ansi
        self._lines: deque[str] = deque(maxlen=MAX_KEPT_LINES)
        self._omitted_line_count = 0
        self._story: Story | None = None

    def __call__(self, story: Story) -> None:
        self._story = story
        if self._screen is None:
            return
        if not self._screen.is_started:
            self._screen.start()
            guard_streams()  # `rich` has replaced them, so that other lines stand above the list
        self._draw_screen()
        if story.is_finished:
            self._screen.stop()

    def show_log_lines(self, rows: list[Row]) -> None:
        if self._screen is None:
            print_log_lines(rows)
            return
        self._omitted_line_count += max(0, len(self._lines) + len(rows) - MAX_KEPT_LINES)
        self._lines.extend(map(format_log_line, rows))
        self._draw_screen()

    @property
    def live(self) -> bool:
        return self._screen is not None

    def list_last_lines(self) -> Sequence[str]:
        """The kept lines, to print below the list again: the drawn ones are erased at the end."""
        lines = list(self._lines)
        if self._omitted_line_count:
            lines.insert(0, self._describe_omitted_lines())
        return lines

    def _describe_omitted_lines(self) -> str:
        note = f"{self._omitted_line_count} lines before these"
        if self._story is not None:
            note += f": noetl exec logs {self._story.state.execution_id} shows them"
        return adapt_commands(f"({note})")

    def _draw_screen(self) -> None:
        if self._screen is None or self._story is None:
            return
        last = list(self._lines)[-MAX_LINES_BELOW_STEPS:]
        lines = [*list_step_lines(self._story), *map(dim_text, last)]
        shown = make_printable("\n".join(lines))
        text = self._make_text(shown, no_wrap=True, overflow="ellipsis")
        self._screen.update(text)


class EventDisplay:
    """Prints one line per event, and the lines of steps as they come."""

    live = False

    def __init__(self, logs: bool) -> None:
        self.logs = logs

    def show_log_lines(self, rows: list[Row]) -> None:
        print_log_lines(rows)

    def list_last_lines(self) -> Sequence[str]:
        return ()

    def __call__(self, story: Story) -> None:
        first = story.event_count - len(story.new_events) + 1
        for number, event in enumerate(story.new_events, first):
            print(format_event_line(number, event, story.began_at), flush=True)


def format_event_line(number: int, event: Event, began_at: Micros) -> str:
    """The number of an event in its execution, seconds since the first one, type and fields."""
    seconds = (event.at - began_at) / 1e6
    place = dim_text(f"{number:5}  {seconds:8.3f}")
    return f"{place}  {event.type:<24}{describe_event(event)}"


def describe_event(event: Event) -> str:
    """The fields of an event that help to read a list of events."""
    values = msgspec.to_builtins(event)
    result = values.get("result") or {}
    reference = result.get("reference") or {}
    collection = values.get("collection") or {}
    fields = {
        "step": values.get("step"),
        "task": values.get("task"),
        "kind": values.get("kind"),
        "reason": values.get("reason"),
        "signal": values.get("signal"),
        "items": values.get("count") or collection.get("size"),
        "status": result.get("status"),
        "result": _shorten_uri(reference.get("uri")),
        "arcs": [_describe_verdict(arc) for arc in values.get("verdicts", ())] or None,
        "set": values.get("set") or None,
        "stats": values.get("stats"),
        "error": _format_event_error(values.get("error") or result.get("error")),
    }
    known = {name: value for name, value in fields.items() if value is not None}
    return "  ".join(f"{name}={_format_event_field(value)}" for name, value in known.items())


def _format_event_error(error: Any) -> str | None:
    if not error:
        return None
    if isinstance(error, str):
        return error
    return f"{error.get('code')}: {error.get('message')}"


def _shorten_uri(uri: str | None) -> str | None:
    """The part of a reference's address that is unique in its execution."""
    return uri and uri.split("/", 4)[-1]


def _describe_verdict(arc: dict[str, Any]) -> str:
    text = f"{arc['step']} {arc['verdict']}"
    saw = [f"{name} = {_format_event_field(value)}" for name, value in arc.get("saw", {}).items()]
    if saw:
        text += f" ({', '.join(saw)})"
    return text


def _format_event_field(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(_format_event_field, value))
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return shorten_text(text, 120)


def list_step_lines(story: Story) -> list[str]:
    """The list of steps, one line each, in aligned columns."""
    seen = summarize_steps(story.state)
    rows = []
    for name, (status, runs, progress) in story.list_steps().items():
        duration = format_seconds(_measure_step(story, name, seen[name]))
        repeats = f"{runs} runs" if runs > 1 else ""
        rows.append((name, status, duration, progress, repeats))
    widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
    return [_format_step_line(row, widths) for row in rows]


def _format_step_line(row: tuple[str, str, str, str, str], widths: list[int]) -> str:
    name, status, duration, progress, repeats = row
    cells = [
        add_colour(status, _SIGNS.get(status, " ")),
        name.ljust(widths[0]),
        add_colour(status, status.ljust(widths[1])),
        duration.rjust(widths[2]),
        progress.ljust(widths[3]),
        repeats,
    ]
    return "  ".join(cells).rstrip()


def _measure_step(story: Story, name: str, step: StepView) -> float | None:
    """The duration of a step. For a running step, the time until the last event of the log."""
    for activation in story.state.activations.values():
        if activation.step == name:
            return (story.state.last_at - activation.entered_at) / 1e6
    return step.seconds


def print_end(
    story: Story,
    *,
    durable: bool,
    lines: Sequence[str] = (),
    server_address: str | None = None,
) -> None:
    """Print how an execution ended.

    `durable`: it is recorded, so later commands can show it. So does the page at `server_address`.
    """
    for line in list_step_lines(story):
        print(line)
    for printed in lines:
        print(dim_text(printed))
    seconds = (story.state.last_at - story.began_at) / 1e6
    facts = f"execution {story.state.execution_id}  {story.state.events} events  {seconds:.2f} s"
    recovered = story.state.recovered
    print(
        f"\n{add_colour(story.status, format_status(story.status, recovered))}  {dim_text(facts)}"
    )
    for recovery in story.state.recoveries:
        print(dim_text(f"recovered from {format_recovery(msgspec.structs.asdict(recovery))}"))
    failure = story.failure
    if failure is not None:
        where = f"step {story.state.failed_step}: " if story.state.failed_step else ""
        print(add_colour("failed", f"error: {where}{failure.code}: {failure.message}"))
        print_cause(story.cause, story.state.execution_id)
    if story.workload:
        print_workload(story.workload)
    print_children(story.list_children(), story.state.execution_id)
    if story.result is not None:
        _print_result(story)
    if durable:
        print(f"\n{dim_text(adapt_commands(_suggest_commands(story)))}")
    if server_address is not None:
        page = f"{server_address}/executions/{story.state.execution_id}"
        print(dim_text(f"in a browser: {page}"))


def _print_result(story: Story) -> None:
    """Print rows as a table, and any other value as JSON."""
    table = _read_preview_table(story) or _read_inline_table(story.result)
    if table is None:
        text = msgspec.json.format(msgspec.json.encode(story.result), indent=2)
        print(text.decode())
        return
    lines = []
    for row in table.rows[:MAX_TABLE_ROWS]:
        lines.append([_to_printable(row.get(name)) for name in table.columns])
    print()
    print_table(table.columns, lines)
    if table.total is not None and table.total > MAX_TABLE_ROWS:
        print(dim_text(f"… {table.total - MAX_TABLE_ROWS} more rows"))


@dataclass(frozen=True, slots=True)
class _ResultTable:
    rows: list[Row]
    columns: list[str]
    total: int | None  # number of rows in the store; None if it is not known


def _read_preview_table(story: Story) -> _ResultTable | None:
    """The first rows of a large result; None if there are none, or they are no records."""
    rows = story.preview
    if not rows or not _are_records(rows):
        return None
    return _ResultTable(rows, list(rows[0]), story.result["reference"].get("rows"))


def _read_inline_table(result: Any) -> _ResultTable | None:
    """The rows of a small result; None if it is not what SQL tools return: rows and columns."""
    if not isinstance(result, dict):
        return None
    rows, columns = result.get("rows"), result.get("columns")
    if not rows or not _are_records(rows) or not isinstance(columns, list):
        return None
    if not all(isinstance(name, str) for name in columns):
        return None
    return _ResultTable(rows, columns, len(rows))


def _are_records(rows: Any) -> bool:
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)


def _to_printable(value: Any) -> Any:
    if isinstance(value, dict | list | bool):
        return msgspec.json.encode(value).decode()
    return value


def _suggest_commands(story: Story) -> str:
    """The commands to type next."""
    execution_id, failed_step = story.state.execution_id, story.state.failed_step
    if story.status == "quarantined":
        return (
            f"set aside: noetl exec events {execution_id}, then noetl exec release {execution_id}"
        )
    if story.failure is not None and failed_step:
        why = f"look closer: noetl exec explain {execution_id} {shlex.quote(failed_step)}"
        return f"{why}   try again: noetl exec retry {execution_id}"
    return (
        f"look closer: noetl exec get {execution_id}   all of it: noetl exec events {execution_id}"
    )
