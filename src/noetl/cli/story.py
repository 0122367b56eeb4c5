"""What an execution's events tell a person: its steps as they go, and how it ended. Folded by the engine, like everything."""

import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from noetl.cli.client import Row
from noetl.cli.details import loop_text, print_cause, print_children, print_workload, seconds_text
from noetl.cli.output import (
    as_called,
    coloured,
    columns,
    dim,
    log_line,
    log_lines,
    recovery_line,
    status_text,
)
from noetl.engine import playbook_state
from noetl.engine.fold import evolve
from noetl.engine.state import Execution, LoopState, empty
from noetl.log.port import Recorded
from noetl.model.errors import Failure, NotFound
from noetl.model.events import ChildEnded, ChildStarted, Event, PlaybookCompleted
from noetl.model.ids import ActivationId, ExecutionId
from noetl.model.reference import Reference
from noetl.playbook.assignments import is_reference, linked, unwrapped
from noetl.server.services.details import CHILDREN_LISTED
from noetl.server.steps import LoopProgress, StepSeen, steps_of

KEPT = 1_000  # lines that steps printed, on a terminal
BELOW = 12  # of them, below the list of steps
PREVIEW = 64 * 1024  # a larger result is shown by reference
ITEMS = 1_000  # of a loop: whose result has no size of its own
TABLE = 50  # rows of a result, at the end

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
Look = Callable[
    [ExecutionId, str, int], Awaitable[dict[str, Any]]
]  # into the result of a step: so many of its rows


class Story:
    """One execution, as far as it is recorded."""

    def __init__(self, execution_id: ExecutionId) -> None:
        self.state: Execution = empty(execution_id)
        self.last_seq = 0
        self.new: list[Event] = []  # what the last `add` brought
        self.began = 0
        self.result: Any = None
        self.ctx: dict[str, Any] = {}
        self.said: dict[str, str] = {}  # by tools, of how far they are, by step
        self.workload: dict[str, Any] = {}
        self.cause: dict[str, Any] | None = None
        self.children: dict[str, dict[str, Any]] = {}  # by the call that started them
        self._last: Event | None = None

    def add(self, recorded: list[Recorded]) -> None:
        self.new = [row.event for row in recorded]
        for row in recorded:
            self.began = self.began or row.event.at
            self._add_child(row.event)
            self.state = evolve(self.state, row.event)
            self.last_seq, self._last = row.seq, row.event

    def _add_child(self, event: Event) -> None:
        """Before it is folded: then the state still says what was asked for."""
        if isinstance(event, ChildStarted):
            asked = (
                live.parked for live in self.state.commands.values() if live.parked is not None
            )
            request = next((wait.request for wait in asked if wait.call == event.call), None)
            path = None if request is None else request.path
            child = {
                "execution_id": event.child,
                "path": path,
                "status": "running",
                "recovered": 0,
                "error": None,
            }
            self.children[event.call] = child
        elif isinstance(event, ChildEnded) and event.call in self.children:
            error = event.result.error
            status = "completed" if error is None else "failed"
            if error is not None and error.code == "CHILD_CANCELLED":
                status = "cancelled"
            told = None if error is None else error.message
            self.children[event.call] |= {
                "status": status,
                "recovered": event.recovered,
                "error": told,
            }

    def children_seen(self) -> dict[str, Any]:
        """As the API has them."""
        newest = list(reversed(self.children.values()))
        counts = Counter(child["status"] for child in newest)
        return {"total": len(newest), "counts": dict(counts), "newest": newest[:CHILDREN_LISTED]}

    @property
    def ended(self) -> bool:
        return self.state.terminal or self.state.quarantined is not None

    @property
    def status(self) -> str:
        return "quarantined" if self.state.quarantined is not None else self.state.status

    @property
    def failure(self) -> Failure | None:
        if self.state.quarantined is not None:
            return Failure(code="QUARANTINED", message=self.state.quarantined)
        return self.state.failure if self.status == "failed" else None

    def steps(self) -> dict[str, tuple[str, int, str]]:
        """By name, in the order they began: status, number of activations, progress of a loop."""
        progress = {name: _stats(step.loop) for name, step in steps_of(self.state).items()}
        for activation in self.state.activations.values():
            loop = activation.loop
            told = "" if loop is None else self._progress(activation.entered_at, loop)
            words = (told or self._waits_for(activation.id), self.said.get(activation.step, ""))
            progress[activation.step] = ", ".join(filter(None, words))
        return {
            name: (step.status, step.runs, progress[name])
            for name, step in steps_of(self.state).items()
        }

    def _progress(self, since: int, loop: LoopState) -> str:
        """How many of how many, and how many a second."""
        done = loop.ok + loop.failed + loop.skipped + loop.ahead
        seconds = (self.state.last_at - since) / 1e6
        rate = f", {done / seconds:.0f}/s" if done and seconds > 0.5 else ""
        return f"{done} of {loop.size or '…'}{rate}" + (
            f", {loop.failed} failed" if loop.failed else ""
        )

    def _waits_for(self, activation: ActivationId) -> str:
        for command in self.state.commands.values():
            if command.activation == activation and command.parked is not None:
                named = f" {command.parked.signal}" if command.parked.signal else ""
                return (
                    f"waits for {_REASONS.get(command.parked.reason, command.parked.reason)}{named}"
                )
        return ""

    async def settle(self, resolve: Resolve, look: Look | None = None) -> None:
        """Bring in the data that the end is told with: the last result, or its first rows, and ctx values kept by reference."""
        ended = self._last
        if (
            isinstance(ended, PlaybookCompleted)
            and ended.result is not None
            and ended.result.reference is not None
        ):
            self.result = await _value(ended.result.reference, resolve)
            if look is not None and ended.step is not None and _large(ended.result.reference):
                preview = (await look(self.state.execution_id, ended.step, TABLE))["preview"]
                self.result["preview"] = preview if preview is None else preview["rows"]
        self.ctx = {name: await _settled(value, resolve) for name, value in self.state.ctx.items()}

    def to_dict(self) -> dict[str, Any]:
        failure = self.failure
        return {
            "execution_id": self.state.execution_id,
            "status": self.status,
            "recovered": self.state.recovered,
            "error": failure
            and {"code": failure.code, "message": failure.message, "step": self.state.failed_step},
            "result": self.result,
            "ctx": self.ctx,
            "state": playbook_state.shown(self.state),
            "steps": {name: step.shown() for name, step in steps_of(self.state).items()},
            "workload": self.workload,
            "children": self.children_seen(),
            "cause": self.cause,
        }


def _stats(loop: LoopProgress | None) -> str:
    return "" if loop is None else loop_text(asdict(loop))


async def _settled(value: Any, resolve: Resolve) -> Any:
    if not is_reference(value):
        return unwrapped(value)
    return await _value(linked(value), resolve)


def _large(reference: Reference) -> bool:
    return (reference.rows or 0) > ITEMS if reference.bytes is None else reference.bytes > PREVIEW


async def _value(reference: Reference, resolve: Resolve) -> Any:
    if _large(reference):
        return {"reference": msgspec.to_builtins(reference)}
    try:
        return await resolve(reference)
    except NotFound:
        return {"reference": msgspec.to_builtins(reference)}


# ---- on the screen -----------------------------------------------------------------------------------------------------


class Silent:
    """Nothing of the execution; what its steps print goes where it disturbs nobody who reads the output."""

    live = False

    def __init__(self, logs: bool) -> None:
        self.logs = logs

    def __call__(self, story: Story) -> None: ...

    def printed(self, rows: list[Row]) -> None:
        log_lines(rows, to=sys.stderr)

    def left(self) -> Sequence[str]:
        return ()


class StepDisplay:
    """The list of steps, drawn again as it changes, with the last lines they printed below it. On anything but a terminal,
    the lines as they come and the list at the end."""

    def __init__(self, logs: bool) -> None:
        self.logs = logs
        self._screen: Any = None
        if sys.stdout.isatty():
            from rich.live import (
                Live as Screen,  # it takes as long to load as a short playbook to run
            )

            self._screen = Screen(transient=True, refresh_per_second=8)
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._left_out = 0
        self._story: Story | None = None

    def __call__(self, story: Story) -> None:
        self._story = story
        if self._screen is None:
            return
        if not self._screen.is_started:
            self._screen.start()
        self._draw()
        if story.ended:
            self._screen.stop()

    def printed(self, rows: list[Row]) -> None:
        if self._screen is None:
            log_lines(rows)
            return
        self._left_out += max(0, len(self._lines) + len(rows) - KEPT)
        self._lines.extend(map(log_line, rows))
        self._draw()

    @property
    def live(self) -> bool:
        return self._screen is not None

    def left(self) -> Sequence[str]:
        """On a terminal, under the list: what was drawn is gone."""
        before = (
            [f"({self._left_out} lines before these: noetl exec logs shows them)"]
            if self._left_out
            else []
        )
        return [*before, *self._lines]

    def _draw(self) -> None:
        if self._screen is None or self._story is None:
            return
        from rich.text import Text

        lines = [*step_lines(self._story), *map(dim, list(self._lines)[-BELOW:])]
        self._screen.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="ellipsis"))


class EventLines:
    """One line per event, and what steps print as it comes."""

    live = False

    def __init__(self, logs: bool) -> None:
        self.logs = logs

    def printed(self, rows: list[Row]) -> None:
        log_lines(rows)

    def left(self) -> Sequence[str]:
        return ()

    def __call__(self, story: Story) -> None:
        for event in story.new:
            print(
                f"{dim(f'{(event.at - story.began) / 1e6:8.3f}')}  {event.type:<24}{describe(event)}",
                flush=True,
            )


def describe(event: Event) -> str:
    """The few words of an event that help to read a list of them."""
    values = msgspec.to_builtins(event)
    result = values.get("result") or {}
    told = {
        "step": values.get("step"),
        "task": values.get("task"),
        "kind": values.get("kind"),
        "items": values.get("count") or (values.get("collection") or {}).get("size"),
        "status": result.get("status"),
        "result": _tail((result.get("reference") or {}).get("uri")),
        "arcs": [_verdict(arc) for arc in values.get("verdicts", ())] or None,
        "set": values.get("set") or None,
        "stats": values.get("stats"),
        "error": (values.get("error") or result.get("error") or {}),
    }
    error = told.pop("error")
    if error:
        told["error"] = (
            error if isinstance(error, str) else f"{error.get('code')}: {error.get('message')}"
        )
    return "  ".join(f"{name}={_short(value)}" for name, value in told.items() if value is not None)


def _tail(uri: str | None) -> str | None:
    """The address within its execution."""
    return uri and uri.split("/", 4)[-1]


def _verdict(arc: dict[str, Any]) -> str:
    saw = ", ".join(f"{name} = {_short(value)}" for name, value in arc.get("saw", {}).items())
    return f"{arc['step']} {arc['verdict']}" + (f" ({saw})" if saw else "")


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(_short, value))
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 120 else text[:119] + "…"


def step_lines(story: Story) -> list[str]:
    seen = steps_of(story.state)
    rows = [
        (
            name,
            status,
            seconds_text(_seconds(story, seen[name])),
            progress,
            f"{runs} runs" if runs > 1 else "",
        )
        for name, (status, runs, progress) in story.steps().items()
    ]
    widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [
                coloured(status, _SIGNS.get(status, " ")),
                name.ljust(widths[0]),
                coloured(status, status.ljust(widths[1])),
                took.rjust(widths[2]),
                progress.ljust(widths[3]),
                again,
            ]
        ).rstrip()
        for name, status, took, progress, again in rows
    ]


def _seconds(story: Story, step: StepSeen) -> float | None:
    """Of a step that runs: as far as the log has come."""
    if step.status == "running" and step.started_at is not None:
        return (story.state.last_at - step.started_at) / 1e6
    return step.seconds


def print_end(story: Story, *, durable: bool, lines: Sequence[str] = ()) -> None:
    for line in step_lines(story):
        print(line)
    for printed in lines:
        print(dim(printed))
    seconds = (story.state.last_at - story.began) / 1e6
    facts = f"execution {story.state.execution_id}  {story.state.events} events  {seconds:.2f} s"
    recovered = story.state.recovered
    print(f"\n{coloured(story.status, status_text(story.status, recovered))}  {dim(facts)}")
    for each in story.state.recoveries:
        print(dim(f"recovered from {recovery_line(msgspec.structs.asdict(each))}"))
    if (failure := story.failure) is not None:
        where = f"step {story.state.failed_step}: " if story.state.failed_step else ""
        print(coloured("failed", f"error: {where}{failure.code}: {failure.message}"))
        print_cause(story.cause, story.state.execution_id)
    if story.workload:
        print_workload(story.workload)
    print_children(story.children_seen())
    if story.result is not None:
        _print_result(story.result)
    if durable:
        print(f"\n{dim(as_called(_next_look(story)))}")


def _print_result(result: Any) -> None:
    """Rows as a table; anything else as JSON."""
    rows, names = (
        (result.get("rows"), result.get("columns")) if isinstance(result, dict) else (None, None)
    )
    if isinstance(result, dict) and result.get("preview"):
        rows = result["preview"]
        names = list(rows[0]) if isinstance(rows[0], dict) else None
    if not (rows and isinstance(names, list) and all(isinstance(row, dict) for row in rows)):
        print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
        return
    print()
    columns(names, [[_shown(row.get(name)) for name in names] for row in rows[:TABLE]])
    whole = result["reference"]["rows"] if "preview" in result else len(rows)
    if whole is not None and whole > TABLE:
        print(dim(f"… {whole - TABLE} more rows"))


def _shown(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list | bool) else value


def _next_look(story: Story) -> str:
    """What to type next."""
    if story.status == "quarantined":
        return f"set aside: noetl exec events {story.state.execution_id}, then noetl exec release {story.state.execution_id}"
    if story.failure is not None and story.state.failed_step:
        return f"look closer: noetl exec explain @latest {story.state.failed_step}   try again: noetl exec retry @latest"
    return "look closer: noetl exec get @latest   all of it: noetl exec events @latest"
