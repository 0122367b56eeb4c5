"""`noetl run`: starts a playbook, follows the execution to its end, and reports it."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from noetl.cli.loop import in_loop
from noetl.cli.output import (
    FAILED,
    LEFT,
    as_called,
    cause,
    complain,
    refusal,
    warn_of_unknown_settings,
)
from noetl.model.errors import Conflict, InvalidInput, NoetlError, NotFound, Unavailable

if TYPE_CHECKING:
    from noetl.cli.client import Client, Row
    from noetl.cli.story import Story
    from noetl.log.port import Recorded
    from noetl.model.ids import ExecutionId
    from noetl.model.reference import Reference

NOTICE = 3.0  # seconds before the user is told that the execution runs or that no worker does
LAST_LINES = 10.0  # seconds to wait for the last printed lines after the execution has ended
PROGRESS_EVERY = 1.0  # seconds
PATIENCE = 30.0  # seconds that the log may be unavailable while an execution is followed
_ON_SPARK = re.compile(r"""\b(kind|exec):\s*["']?spark\b""")


def register(app: typer.Typer) -> None:
    app.command()(run)


AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="print every event as it is recorded")]
Logs = Annotated[
    bool, typer.Option("--logs", "-l", help="show what its steps print, as they print it")
]


def run(
    file: Annotated[
        str, typer.Argument(metavar="FILE|PATH", help="a playbook file, or a path of the catalog")
    ],
    memory: Annotated[
        bool,
        typer.Option("--memory", help="log, queue and results in this process; gone when it ends"),
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="K=V", help="one workload value; V is YAML, K may have dots"),
    ] = None,
    payload: Annotated[
        Path | None,
        typer.Option("--payload", metavar="FILE", help="workload values from a YAML or JSON file"),
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="FILE", help="a playbook that this one calls as a child"),
    ] = None,
    dry: Annotated[
        bool,
        typer.Option("--dry-run", help="check it and say what it would do and need; run nothing"),
    ] = False,
    as_json: AsJson = False,
    watch: Watch = False,
    logs: Logs = False,
) -> None:
    """Run a playbook and wait for its end.

    A file is registered under its own path first. Without NOETL_SERVER_URL everything happens in this process, on the database
    of NOETL_HOME, which is made at the first run and keeps what happened; with it, the server and its workers do it.

    Prints its steps, then the result of the last one, or the first failure that nothing handled and where it happened.
    Values given with --set win over those of --payload, and both over the playbook's own workload. Ctrl-C cancels it; a
    second Ctrl-C leaves at once.

    Exit code: 0 completed, 1 failed or cancelled, 2 the playbook or the arguments are wrong, 130 left.

    \b
    Examples:
      noetl run examples/hello.yaml
      noetl run examples/loop.yaml --set count=100 --json
      noetl run invoices.yaml --payload january.json --watch
      noetl run examples/hello.yaml --logs
      noetl run examples/hello              a playbook of the catalog
      noetl run --memory examples/hello.yaml
      noetl run invoices.yaml --set limit=5 --dry-run
    """
    warn_of_unknown_settings()
    with _refused_as_json(as_json):
        source = PlaybookSource.of(file)
        others = [PlaybookSource.of(str(path)) for path in also or []]
        workload = merged(values_of(payload), assignments or [])
        if dry:
            warn_of_strangers(source.text or "", assignments or [])
            return _dry_run(source, workload, as_json)
        if memory and source.text is None:
            raise InvalidInput(
                f"{file}: no such file", hint=_similar(Path(file)) or "--memory runs files only"
            )
        if not memory:
            _begin_early(source)
        show = told(as_json, watch, logs)
        running = _run(memory, source, others, workload, assignments or [], show)
        story = in_loop(running)
    finish(story, as_json, durable=not memory, lines=show.left())


@contextmanager
def _refused_as_json(as_json: bool) -> Iterator[None]:
    """With `--json`, print a JSON object even if no execution began."""
    try:
        yield
    except Exception as error:
        reason = cause(error)
        if not as_json or not isinstance(reason, NoetlError):
            raise
        row = json.dumps(refusal(reason), ensure_ascii=False)
        sys.stdout.write(row + "\n")
        raise typer.Exit(complain(reason)) from error


def _dry_run(source: "PlaybookSource", workload: dict[str, Any], as_json: bool) -> None:
    from noetl.cli.dryrun import planned, print_plan
    from noetl.cli.language import load_or_raise
    from noetl.cli.output import say_json
    from noetl.cli.tools import tools
    from noetl.settings import HomeSettings, read
    from noetl.tools import registry

    text = source.text
    if text is None:
        text = in_loop(_stored(source.name))
    playbook = load_or_raise(text, source.name)
    plan = planned(playbook, workload)
    in_loop(_ask_what_is_there(plan))
    here = (*registry.default().kinds, *tools(read(HomeSettings).where))
    if as_json:
        say_json(plan)
    else:
        print_plan(plan, playbook, here)


async def _ask_what_is_there(plan: dict[str, Any]) -> None:
    """Add missing names and current state to the plan, if a server or a database can tell them."""
    from noetl.cli.client import connect
    from noetl.cli.dryrun import current_state, find_missing
    from noetl.embedded.cluster import PostgresCluster
    from noetl.settings import HomeSettings, Store, read

    place = read(HomeSettings)
    if not place.servers and read(Store).db_url is None:
        has_database = PostgresCluster(place.where).major() is not None
        if not has_database:
            return
    async with connect("read") as client:
        plan["missing"] = await find_missing(plan["uses"], client)
        plan["state"]["now"] = await current_state(plan["state"], plan["path"], client)


async def _stored(path: str) -> str:
    from noetl.cli.client import connect

    async with connect("read") as client:
        row = await client.playbook(path)
    return str(row["content"])


def _begin_early(source: "PlaybookSource") -> None:
    """Start the database, and Spark if a step needs it, while this process still loads modules.

    Errors are ignored here: the first real use reports them.
    """
    if os.environ.get("NOETL_SERVER_URL"):
        return
    from threading import Thread

    if _ON_SPARK.search(source.text or ""):
        spark = Thread(target=_begin_spark, args=(source,), name="early-spark", daemon=True)
        spark.start()
    if os.environ.get("NOETL_DB_URL"):
        return
    from noetl.embedded import ensure

    def start_database() -> None:
        with suppress(Exception):
            asyncio.run(ensure())

    # Not a daemon: the process must not end in the middle of making a database.
    Thread(target=start_database, name="early").start()


def _begin_spark(source: "PlaybookSource") -> None:
    from noetl.cli.language import load_or_raise
    from noetl.cli.tools import begin_spark

    with suppress(Exception):
        load_or_raise(source.text or "", source.name)  # an invalid playbook starts nothing
        begin_spark()


def finish(
    story: "Story",
    as_json: bool,
    *,
    durable: bool = True,
    lines: "Sequence[str]" = (),
) -> None:
    """Print how the execution ended, and exit with the code that says the same."""
    if as_json:
        row = json.dumps(story.to_dict(), ensure_ascii=False)
        sys.stdout.write(row + "\n")
    else:
        from noetl.cli.story import print_end

        print_end(story, durable=durable, lines=lines)
    raise typer.Exit(0 if story.status == "completed" else FAILED)


# ---- following ---------------------------------------------------------------------------------------------------------


class Show(Protocol):
    """Shows an execution while it is followed; called whenever something was recorded.

    `logs`: it shows the lines that steps print. `live`: it shows the progress of tools.
    """

    logs: bool

    @property
    def live(self) -> bool: ...
    def __call__(self, story: "Story") -> None: ...
    def printed(self, rows: "list[Row]") -> None:
        """Show lines that steps printed."""
        ...

    def left(self) -> "Sequence[str]":
        """Lines to print at the end."""
        ...


class FollowedExecution(Protocol):
    """The part of a client that is needed to follow an execution. The memory cluster has it too."""

    async def events_after(self, execution_id: "ExecutionId", after: int) -> "list[Recorded]": ...
    async def change(self, execution_id: "ExecutionId", how: Any) -> Any: ...
    def logs(
        self, execution_id: "ExecutionId", step: str | None = None, *, follow: bool = False
    ) -> "AsyncGenerator[list[Row], None]": ...
    async def queue(
        self, status: str | None = None, execution_id: "ExecutionId | None" = None
    ) -> "list[Row]": ...
    async def resolve(self, reference: "Reference") -> Any: ...
    async def preview(self, execution_id: "ExecutionId", step: str, rows: int) -> "Row": ...
    async def workload(self, execution_id: "ExecutionId") -> "Row": ...
    async def cause(self, execution_id: "ExecutionId", min_seq: int) -> "Row | None": ...


async def _run(
    memory: bool,
    source: "PlaybookSource",
    others: "list[PlaybookSource]",
    workload: dict[str, Any],
    assigned: list[str],
    show: Show,
) -> "Story":
    async with interruptible() as stop:
        if memory:
            warn_of_strangers(source.text or "", assigned)
            return await _in_memory(source, others, workload, show, stop)
        from noetl.cli.client import connect

        async with connect("run", pools_in(source, *others)) as client:
            if assigned:
                with suppress(NotFound):  # the start reports it
                    text = await _text(client, source)
                    warn_of_strangers(text, assigned)
            execution_id = await begin(client, source, others, workload)
            notice = asyncio.ensure_future(_notice(client, execution_id, show))
            try:
                return await follow(client, execution_id, show, stop)
            finally:
                notice.cancel()


async def _text(client: "Client", source: "PlaybookSource") -> str:
    """The text of a file, or of the playbook in the catalog."""
    if source.text:
        return source.text
    row = await client.playbook(source.name)
    return str(row["content"])


async def _notice(client: "Client", execution_id: "ExecutionId", show: Show) -> None:
    """Tell the user after a while that the execution runs, and if no worker does.

    Without it, a long execution outside a terminal, or a server without a worker, looks stuck.
    """
    await asyncio.sleep(NOTICE)
    if not show.live:
        where = f"execution {execution_id} is under way: noetl exec get {execution_id} says how far"
        print(as_called(where), file=sys.stderr)
    with suppress(Unavailable):
        if client.runs and not await client.workers():
            warning = as_called("no worker is there yet: noetl worker start; Ctrl-C cancels")
            print(warning, file=sys.stderr)


async def _in_memory(
    source: "PlaybookSource",
    others: "list[PlaybookSource]",
    workload: dict[str, Any],
    show: Show,
    stop: asyncio.Event,
) -> "Story":
    from noetl.cli.memory import MemoryCluster
    from noetl.model.commands import USUAL_POOLS

    pools = (*USUAL_POOLS, *pools_in(source, *others))
    async with MemoryCluster(pools=pools) as cluster:
        for other in others:
            await cluster.register(other.text or "", other.name)
        execution_id = await cluster.start(source.text or "", source.name, workload)
        return await follow(cluster, execution_id, show, stop)


def pools_in(*sources: "PlaybookSource") -> tuple[str, ...]:
    """Names that may be pools of the playbooks. They are searched in the text: extra ones are harmless."""
    names: list[str] = []
    for source in sources:
        names += re.findall(r"""\bpool:\s*["']?([\w.-]+)""", source.text or "")
    return tuple(dict.fromkeys(names))


async def begin(
    client: "Client",
    source: "PlaybookSource",
    others: "list[PlaybookSource]",
    workload: dict[str, Any],
) -> "ExecutionId":
    """Register the files and start an execution."""
    for other in others:
        await _registered(client, other)
    if source.text is not None:
        row = await _registered(client, source)
        # By version: another process may register a newer text meanwhile.
        return await client.start(row["path"], row["version"], workload)
    path = source.name
    try:
        return await client.start(path, None, workload)
    except NotFound as error:
        raise NotFound(
            f"no file and no playbook of the catalog is called {path!r}",
            hint=await meant(client, path),
        ) from error


async def _registered(client: "Client", source: "PlaybookSource") -> "Row":
    from noetl.cli.language import load_or_raise

    load_or_raise(source.text or "", source.name)  # checked here, so that findings name the file
    return await client.register(source.text or "")


async def meant(client: "Client", path: str) -> str:
    """A hint for a playbook that does not exist: the most similar path, or how to list them."""
    from difflib import get_close_matches

    names = [row["path"] for row in await client.playbooks()]
    close = get_close_matches(path, names, 1)
    if not close:
        return "noetl catalog list shows what there is"
    return f"did you mean {close[0]}?"


async def follow(
    site: FollowedExecution, execution_id: "ExecutionId", show: Show, stop: asyncio.Event
) -> "Story":
    """Follow an execution to its end. Cancels it when `stop` is set."""
    from noetl.cli.story import Story

    story = Story(execution_id)
    async with _logs_told(site, story, show), _progress_told(site, story, show):
        while not story.ended:
            if stop.is_set():
                await _cancel(site, execution_id)
                stop = asyncio.Event()  # never set: it is cancelled once, and followed to its end
            recorded = await _next(site, story, stop)
            story.add(recorded)
            if recorded:
                show(story)
    await story.settle(site.resolve, site.preview)
    story.workload = await site.workload(execution_id)
    if story.status == "failed":
        with suppress(Unavailable):  # the story has the failure already
            story.cause = await site.cause(execution_id, story.last_seq)
    return story


@asynccontextmanager
async def _logs_told(site: FollowedExecution, story: "Story", show: Show) -> AsyncIterator[None]:
    """Show the lines that steps print while the execution is followed.

    The last lines are stored before the end of the execution, so they are waited for.
    """
    if not show.logs:
        yield
        return

    async def show_lines() -> None:
        async with aclosing(site.logs(story.state.execution_id, follow=True)) as pages:
            async for rows in pages:
                show.printed(rows)

    showing = asyncio.ensure_future(show_lines())
    try:
        yield
        if story.state.terminal:
            await asyncio.wait((showing,), timeout=LAST_LINES)
    finally:
        showing.cancel()
        (outcome,) = await asyncio.gather(showing, return_exceptions=True)
    if isinstance(outcome, Unavailable):
        print(f"the rest of the log could not be read: {outcome}", file=sys.stderr)
    elif isinstance(outcome, Exception):
        raise outcome


@asynccontextmanager
async def _progress_told(
    site: FollowedExecution, story: "Story", show: Show
) -> AsyncIterator[None]:
    """Show the progress of tools that run for a while.

    Progress is not recorded, so the queue is read for it, but only if a command is older than one
    interval.
    """
    if not show.live:
        yield
        return

    async def show_progress() -> None:
        before: set[str] = set()
        while True:
            await asyncio.sleep(PROGRESS_EVERY)
            commands: set[str] = set(story.state.commands)
            lasting, before = before & commands, commands
            with suppress(Unavailable):
                rows: list[Row] = []
                if lasting:
                    rows = await site.queue("leased", story.state.execution_id)
                story.said = {row["step"]: row["progress"] for row in rows if row["progress"]}
                show(story)

    showing = asyncio.ensure_future(show_progress())
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _cancel(site: FollowedExecution, execution_id: "ExecutionId") -> None:
    print(f"cancelling execution {execution_id}; Ctrl-C again leaves at once", file=sys.stderr)
    with suppress(Conflict):  # it has ended meanwhile
        await site.change(execution_id, "cancel")


async def _next(site: FollowedExecution, story: "Story", stop: asyncio.Event) -> "list[Recorded]":
    """The next events, or none if `stop` is set first. Retries while the log is unavailable."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while True:
        events = site.events_after(story.state.execution_id, story.last_seq)
        reading = asyncio.ensure_future(events)
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else []
        except Unavailable:
            if loop.time() > deadline:
                raise
            await asyncio.sleep(0.2)
        finally:
            for task in (reading, stopping):
                task.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)


@asynccontextmanager
async def interruptible() -> AsyncIterator[asyncio.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets. The second ends the process.

    An execution that is left this way stays as it is.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop_or_exit() -> None:
        if stop.is_set():
            os._exit(LEFT)  # ends even a process that hangs; child processes end by themselves
        stop.set()

    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop_or_exit)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def told(as_json: bool, watch: bool, logs: bool = False) -> Show:
    """The display that the options ask for."""
    from noetl.cli.story import EventLines, Silent, StepDisplay

    if as_json:
        return Silent(logs)
    if watch:
        return EventLines(logs)
    return StepDisplay(logs)


# ---- what the user gave ------------------------------------------------------------------------------------------------


class PlaybookSource:
    """The playbook that the user named: a file with its text, or a path of the catalog."""

    def __init__(self, name: str, text: str | None) -> None:
        self.name = name
        self.text = text

    @classmethod
    def of(cls, argument: str) -> "PlaybookSource":
        """Raises if the argument looks like a file and there is no such file."""
        file = Path(argument)
        is_file = file.suffix in (".yaml", ".yml") or argument.startswith((".", "/", "~"))
        if is_file or file.exists():
            return cls(argument, read(file.expanduser()))
        return cls(argument, None)


def read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror or error}", hint=_similar(file)) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file}: not UTF-8 text") from error


def _similar(file: Path) -> str | None:
    from difflib import get_close_matches

    if not file.parent.is_dir():
        return None
    names = [name for name in os.listdir(file.parent) if name != file.name]
    close = get_close_matches(file.name, names, 1, cutoff=0.75)
    return f"did you mean {file.parent / close[0]}?" if close else None


def values_of(payload: Path | None) -> dict[str, Any]:
    if payload is None:
        return {}
    values = plain(read(payload), str(payload))
    if not isinstance(values, dict):
        raise InvalidInput(f"{payload}: a payload is a mapping of workload names to values")
    return values


def merged(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """The payload with the assignments of `--set` merged over it: `a.b=1` is `{"a": {"b": 1}}`."""
    from noetl.playbook.workload import over

    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        path = name.strip().split(".")
        if not equals or not all(path):
            raise InvalidInput(
                f"--set {assignment!r}: no name and value",
                hint="--set name=value, for example --set limit=20",
            )
        nested: Any = plain(text, f"--set {name}")
        for part in reversed(path):
            nested = {part: nested}
        values = over(values, nested)
    return values


def warn_of_strangers(text: str, assignments: list[str]) -> None:
    """Warn of names that are set, but neither declared nor used by the playbook: likely typos."""
    if not assignments:
        return
    from noetl.cli.language import load

    playbook = load(text, "").playbook
    if playbook is None:
        return
    for assignment in assignments:
        name = assignment.partition("=")[0].strip()
        for warning in _strangers(name, playbook.workload, text):
            print(f"warning: --set {name}: {warning}", file=sys.stderr)


def _strangers(name: str, workload: dict[str, Any], text: str) -> Iterator[str]:
    from difflib import get_close_matches

    declared: Any = workload
    parts = name.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(declared, dict):
            return
        if part not in declared:
            full_name = ".".join(["workload", *parts[: depth + 1]])
            if re.search(rf"\b{re.escape(full_name)}\b", text):
                return
            warning = f"the playbook has no {full_name}"
            close = get_close_matches(part, list(declared), 1)
            if close:
                warning += f": did you mean {'.'.join([*parts[:depth], *close])}?"
            yield warning
            return
        declared = declared[part]


def plain(text: str, where: str) -> Any:
    """Parse YAML into plain data, with the limits of a playbook: no tags, no duplicate keys."""
    from noetl.playbook import text as yaml

    if not text.strip():
        return None
    document = yaml.read(text)
    for problem in document.problems:
        raise InvalidInput(
            f"{where}:{problem.mark.line}:{problem.mark.column}: {problem.message}",
            hint=problem.hint,
        )
    return yaml.plain(document.data)
