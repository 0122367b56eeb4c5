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

from noetl.cli.event_loop import run_in_loop
from noetl.cli.output import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    adapt_commands,
    find_first_error,
    make_refusal_row,
    print_error,
    warn_of_unknown_settings,
)
from noetl.model.errors import Conflict, InvalidInput, NoetlError, NotFound, Unavailable

if TYPE_CHECKING:
    from noetl.cli.client import Client, Row
    from noetl.cli.story import Story
    from noetl.log.events.port import RecordedEvent
    from noetl.model.ids import ExecutionId
    from noetl.model.reference import Reference

NOTICE_DELAY_S = (
    3.0  # seconds before the user is told that the execution runs or that no worker does
)
LAST_LINES_TIMEOUT_S = (
    10.0  # seconds to wait for the last printed lines after the execution has ended
)
PROGRESS_INTERVAL_S = 1.0  # seconds
MAX_LOG_OUTAGE_S = 30.0  # seconds that the log may be unavailable while an execution is followed
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
    with _print_refusal_as_json(as_json):
        source = PlaybookSource.from_argument(file)
        others = [PlaybookSource.from_argument(str(path)) for path in also or []]
        workload = merge_assignments(read_payload(payload), assignments or [])
        if dry:
            warn_of_unknown_names(source.text or "", assignments or [])
            return _dry_run(source, workload, as_json)
        if memory and source.text is None:
            raise InvalidInput(
                f"{file}: no such file",
                hint=_suggest_file(Path(file)) or "--memory runs files only",
            )
        if not memory:
            _start_services_early(source)
        show = make_display(as_json, watch, logs)
        running = _run_playbook(memory, source, others, workload, assignments or [], show)
        story = run_in_loop(running)
    finish_command(story, as_json, durable=not memory, lines=show.list_last_lines())


@contextmanager
def _print_refusal_as_json(as_json: bool) -> Iterator[None]:
    """With `--json`, print a JSON object even if no execution began."""
    try:
        yield
    except Exception as error:
        reason = find_first_error(error)
        if not as_json or not isinstance(reason, NoetlError):
            raise
        row = json.dumps(make_refusal_row(reason), ensure_ascii=False)
        sys.stdout.write(row + "\n")
        raise typer.Exit(print_error(reason)) from error


def _dry_run(source: "PlaybookSource", workload: dict[str, Any], as_json: bool) -> None:
    from noetl.cli.dryrun import plan_dry_run, print_plan
    from noetl.cli.language import check_playbook_or_raise
    from noetl.cli.output import say_json
    from noetl.cli.tools import make_extra_tools
    from noetl.settings import HomeSettings, read_settings
    from noetl.tools import registry

    text = source.text
    if text is None:
        text = run_in_loop(_read_stored_text(source.name))
    playbook = check_playbook_or_raise(text, source.name)
    plan = plan_dry_run(playbook, workload)
    run_in_loop(_add_current_facts(plan))
    here = (
        *registry.make_registry().kinds,
        *make_extra_tools(read_settings(HomeSettings).home_path),
    )
    if as_json:
        say_json(plan)
    else:
        print_plan(plan, playbook, here)


async def _add_current_facts(plan: dict[str, Any]) -> None:
    """Add missing names and current state to the plan, if a server or a database can tell them."""
    from noetl.cli.client import open_client
    from noetl.cli.dryrun import find_missing, read_current_state
    from noetl.embedded.cluster import PostgresCluster
    from noetl.settings import DatabaseSettings, HomeSettings, read_settings

    place = read_settings(HomeSettings)
    if not place.server_urls and read_settings(DatabaseSettings).db_url is None:
        has_database = PostgresCluster(place.home_path).read_major() is not None
        if not has_database:
            return
    async with open_client("read") as client:
        plan["missing"] = await find_missing(plan["uses"], client)
        plan["state"]["now"] = await read_current_state(plan["state"], plan["path"], client)


async def _read_stored_text(path: str) -> str:
    from noetl.cli.client import open_client

    async with open_client("read") as client:
        row = await client.get_playbook(path)
    return str(row["content"])


def _start_services_early(source: "PlaybookSource") -> None:
    """Start the database, and Spark if a step needs it, while this process still loads modules.

    Errors are ignored here: the first real use reports them.
    """
    if os.environ.get("NOETL_SERVER_URL"):
        return
    from threading import Thread

    if _ON_SPARK.search(source.text or ""):
        spark = Thread(target=_start_spark_early, args=(source,), name="early-spark", daemon=True)
        spark.start()
    if os.environ.get("NOETL_DB_URL"):
        return
    from noetl.embedded import ensure

    def start_database() -> None:
        with suppress(Exception):
            asyncio.run(ensure())

    # Not a daemon: the process must not end in the middle of making a database.
    Thread(target=start_database, name="early").start()


def _start_spark_early(source: "PlaybookSource") -> None:
    from noetl.cli.language import check_playbook_or_raise
    from noetl.cli.tools import start_spark

    with suppress(Exception):
        check_playbook_or_raise(
            source.text or "", source.name
        )  # an invalid playbook starts nothing
        start_spark()


def finish_command(
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
    raise typer.Exit(0 if story.status == "completed" else EXIT_FAILED)


# ---- following ---------------------------------------------------------------------------------------------------------


class ExecutionDisplay(Protocol):
    """Shows an execution while it is followed; called whenever something was recorded.

    `logs`: it shows the lines that steps print. `live`: it shows the progress of tools.
    """

    logs: bool

    @property
    def live(self) -> bool: ...
    def __call__(self, story: "Story") -> None: ...
    def show_log_lines(self, rows: "list[Row]") -> None:
        """Show lines that steps printed."""
        ...

    def list_last_lines(self) -> "Sequence[str]":
        """Lines to print at the end."""
        ...


class ExecutionSource(Protocol):
    """The part of a client that is needed to follow an execution. The memory cluster has it too."""

    async def wait_for_events(
        self, execution_id: "ExecutionId", after: int
    ) -> "list[RecordedEvent]": ...
    async def change_execution(self, execution_id: "ExecutionId", how: Any) -> Any: ...
    def stream_logs(
        self, execution_id: "ExecutionId", step: str | None = None, *, follow: bool = False
    ) -> "AsyncGenerator[list[Row], None]": ...
    async def list_queue(
        self, status: str | None = None, execution_id: "ExecutionId | None" = None
    ) -> "list[Row]": ...
    async def resolve(self, reference: "Reference") -> Any: ...
    async def preview_result(self, execution_id: "ExecutionId", step: str, rows: int) -> "Row": ...
    async def get_workload(self, execution_id: "ExecutionId") -> "Row": ...
    async def get_cause(self, execution_id: "ExecutionId", min_seq: int) -> "Row | None": ...


async def _run_playbook(
    memory: bool,
    source: "PlaybookSource",
    others: "list[PlaybookSource]",
    workload: dict[str, Any],
    assigned: list[str],
    show: ExecutionDisplay,
) -> "Story":
    async with catch_interrupts() as stop:
        if memory:
            warn_of_unknown_names(source.text or "", assigned)
            return await _run_in_memory(source, others, workload, show, stop)
        from noetl.cli.client import open_client

        async with open_client("run", find_pools(source, *others)) as client:
            if assigned:
                with suppress(NotFound):  # the start reports it
                    text = await _read_playbook_text(client, source)
                    warn_of_unknown_names(text, assigned)
            execution_id = await register_and_start(client, source, others, workload)
            notice = asyncio.ensure_future(_notify_user(client, execution_id, show))
            try:
                return await follow_execution(client, execution_id, show, stop)
            finally:
                notice.cancel()


async def _read_playbook_text(client: "Client", source: "PlaybookSource") -> str:
    """The text of a file, or of the playbook in the catalog."""
    if source.text:
        return source.text
    row = await client.get_playbook(source.name)
    return str(row["content"])


async def _notify_user(
    client: "Client", execution_id: "ExecutionId", show: ExecutionDisplay
) -> None:
    """Tell the user after a while that the execution runs, and if no worker does.

    Without it, a long execution outside a terminal, or a server without a worker, looks stuck.
    """
    await asyncio.sleep(NOTICE_DELAY_S)
    if not show.live:
        where = f"execution {execution_id} is under way: noetl exec get {execution_id} says how far"
        print(adapt_commands(where), file=sys.stderr)
    with suppress(Unavailable):
        if client.has_server and not await client.list_workers():
            warning = adapt_commands("no worker is there yet: noetl worker start; Ctrl-C cancels")
            print(warning, file=sys.stderr)


async def _run_in_memory(
    source: "PlaybookSource",
    others: "list[PlaybookSource]",
    workload: dict[str, Any],
    show: ExecutionDisplay,
    stop: asyncio.Event,
) -> "Story":
    from noetl.cli.memory import MemoryCluster
    from noetl.model.commands import USUAL_POOLS

    pools = (*USUAL_POOLS, *find_pools(source, *others))
    async with MemoryCluster(pools=pools) as cluster:
        for other in others:
            await cluster.register(other.text or "", other.name)
        execution_id = await cluster.start(source.text or "", source.name, workload)
        return await follow_execution(cluster, execution_id, show, stop)


def find_pools(*sources: "PlaybookSource") -> tuple[str, ...]:
    """Names that may be pools of the playbooks. They are searched in the text: extra ones are harmless."""
    names: list[str] = []
    for source in sources:
        names += re.findall(r"""\bpool:\s*["']?([\w.-]+)""", source.text or "")
    return tuple(dict.fromkeys(names))


async def register_and_start(
    client: "Client",
    source: "PlaybookSource",
    others: "list[PlaybookSource]",
    workload: dict[str, Any],
) -> "ExecutionId":
    """Register the files and start an execution."""
    for other in others:
        await _register_source(client, other)
    if source.text is not None:
        row = await _register_source(client, source)
        # By version: another process may register a newer text meanwhile.
        return await client.start(row["path"], row["version"], workload)
    path = source.name
    try:
        return await client.start(path, None, workload)
    except NotFound as error:
        raise NotFound(
            f"no file and no playbook of the catalog is called {path!r}",
            hint=await suggest_playbook(client, path),
        ) from error


async def _register_source(client: "Client", source: "PlaybookSource") -> "Row":
    from noetl.cli.language import check_playbook_or_raise

    check_playbook_or_raise(
        source.text or "", source.name
    )  # checked here, so that findings name the file
    return await client.register(source.text or "")


async def suggest_playbook(client: "Client", path: str) -> str:
    """A hint for a playbook that does not exist: the most similar path, or how to list them."""
    from difflib import get_close_matches

    names = [row["path"] for row in await client.list_playbooks()]
    close = get_close_matches(path, names, 1)
    if not close:
        return "noetl catalog list shows what there is"
    return f"did you mean {close[0]}?"


async def follow_execution(
    site: ExecutionSource, execution_id: "ExecutionId", show: ExecutionDisplay, stop: asyncio.Event
) -> "Story":
    """Follow an execution to its end. Cancels it when `stop` is set."""
    from noetl.cli.story import Story

    story = Story(execution_id)
    async with _show_logs(site, story, show), _show_progress(site, story, show):
        while not story.is_finished:
            if stop.is_set():
                await _cancel_execution(site, execution_id)
                stop = asyncio.Event()  # never set: it is cancelled once, and followed to its end
            recorded = await _read_next_events(site, story, stop)
            story.add_events(recorded)
            if recorded:
                show(story)
    await story.read_results(site.resolve, site.preview_result)
    story.workload = await site.get_workload(execution_id)
    if story.status == "failed":
        with suppress(Unavailable):  # the story has the failure already
            story.cause = await site.get_cause(execution_id, story.last_seq)
    return story


@asynccontextmanager
async def _show_logs(
    site: ExecutionSource, story: "Story", show: ExecutionDisplay
) -> AsyncIterator[None]:
    """Show the lines that steps print while the execution is followed.

    The last lines are stored before the end of the execution, so they are waited for.
    """
    if not show.logs:
        yield
        return

    async def show_lines() -> None:
        async with aclosing(site.stream_logs(story.state.execution_id, follow=True)) as pages:
            async for rows in pages:
                show.show_log_lines(rows)

    showing = asyncio.ensure_future(show_lines())
    try:
        yield
        if story.state.terminal:
            await asyncio.wait((showing,), timeout=LAST_LINES_TIMEOUT_S)
    finally:
        showing.cancel()
        (outcome,) = await asyncio.gather(showing, return_exceptions=True)
    if isinstance(outcome, Unavailable):
        print(f"the rest of the log could not be read: {outcome}", file=sys.stderr)
    elif isinstance(outcome, Exception):
        raise outcome


@asynccontextmanager
async def _show_progress(
    site: ExecutionSource, story: "Story", show: ExecutionDisplay
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
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            commands: set[str] = set(story.state.commands)
            lasting, before = before & commands, commands
            with suppress(Unavailable):
                rows: list[Row] = []
                if lasting:
                    rows = await site.list_queue("leased", story.state.execution_id)
                story.tool_progress = {
                    row["step"]: row["progress"] for row in rows if row["progress"]
                }
                show(story)

    showing = asyncio.ensure_future(show_progress())
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _cancel_execution(site: ExecutionSource, execution_id: "ExecutionId") -> None:
    print(f"cancelling execution {execution_id}; Ctrl-C again leaves at once", file=sys.stderr)
    with suppress(Conflict):  # it has ended meanwhile
        await site.change_execution(execution_id, "cancel")


async def _read_next_events(
    site: ExecutionSource, story: "Story", stop: asyncio.Event
) -> "list[RecordedEvent]":
    """The next events, or none if `stop` is set first. Retries while the log is unavailable."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + MAX_LOG_OUTAGE_S
    while True:
        events = site.wait_for_events(story.state.execution_id, story.last_seq)
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
async def catch_interrupts() -> AsyncIterator[asyncio.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets. The second ends the process.

    An execution that is left this way stays as it is.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop_or_exit() -> None:
        if stop.is_set():
            os._exit(
                EXIT_INTERRUPTED
            )  # ends even a process that hangs; child processes end by themselves
        stop.set()

    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop_or_exit)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def make_display(as_json: bool, watch: bool, logs: bool = False) -> ExecutionDisplay:
    """The display that the options ask for."""
    from noetl.cli.story import EventDisplay, SilentDisplay, StepDisplay

    if as_json:
        return SilentDisplay(logs)
    if watch:
        return EventDisplay(logs)
    return StepDisplay(logs)


# ---- what the user gave ------------------------------------------------------------------------------------------------


class PlaybookSource:
    """The playbook that the user named: a file with its text, or a path of the catalog."""

    def __init__(self, name: str, text: str | None) -> None:
        self.name = name
        self.text = text

    @classmethod
    def from_argument(cls, argument: str) -> "PlaybookSource":
        """Raises if the argument looks like a file and there is no such file."""
        file = Path(argument)
        is_file = file.suffix in (".yaml", ".yml") or argument.startswith((".", "/", "~"))
        if is_file or file.exists():
            return cls(argument, read_text_file(file.expanduser()))
        return cls(argument, None)


def read_text_file(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"{file}: {error.strerror or error}", hint=_suggest_file(file)
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file}: not UTF-8 text") from error


def _suggest_file(file: Path) -> str | None:
    from difflib import get_close_matches

    if not file.parent.is_dir():
        return None
    names = [name for name in os.listdir(file.parent) if name != file.name]
    close = get_close_matches(file.name, names, 1, cutoff=0.75)
    return f"did you mean {file.parent / close[0]}?" if close else None


def read_payload(payload: Path | None) -> dict[str, Any]:
    if payload is None:
        return {}
    values = parse_plain_yaml(read_text_file(payload), str(payload))
    if not isinstance(values, dict):
        raise InvalidInput(f"{payload}: a payload is a mapping of workload names to values")
    return values


def merge_assignments(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """The payload with the assignments of `--set` merged over it: `a.b=1` is `{"a": {"b": 1}}`."""
    from noetl.playbook.workload import merge_deep

    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        path = name.strip().split(".")
        if not equals or not all(path):
            raise InvalidInput(
                f"--set {assignment!r}: no name and value",
                hint="--set name=value, for example --set limit=20",
            )
        nested: Any = parse_plain_yaml(text, f"--set {name}")
        for part in reversed(path):
            nested = {part: nested}
        values = merge_deep(values, nested)
    return values


def warn_of_unknown_names(text: str, assignments: list[str]) -> None:
    """Warn of names that are set, but neither declared nor used by the playbook: likely typos."""
    if not assignments:
        return
    from noetl.cli.language import check_playbook

    playbook = check_playbook(text, "").playbook
    if playbook is None:
        return
    for assignment in assignments:
        name = assignment.partition("=")[0].strip()
        for warning in _list_unknown_names(name, playbook.workload, text):
            print(f"warning: --set {name}: {warning}", file=sys.stderr)


def _list_unknown_names(name: str, workload: dict[str, Any], text: str) -> Iterator[str]:
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


def parse_plain_yaml(text: str, where: str) -> Any:
    """Parse YAML into plain data, with the limits of a playbook: no tags, no duplicate keys."""
    from noetl.playbook import text as yaml

    if not text.strip():
        return None
    document = yaml.read_document(text)
    for problem in document.problems:
        raise InvalidInput(
            f"{where}:{problem.mark.line}:{problem.mark.column}: {problem.message}",
            hint=problem.hint,
        )
    return yaml.strip_marks(document.data)
