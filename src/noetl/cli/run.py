"""`noetl run`: a playbook from its file to its end, and what to say about it."""

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

NOTICE = 3.0  # seconds until a lack of workers is worth a word
LAST_LINES = 10.0  # seconds for what was printed last, once the execution has ended
PROGRESS_EVERY = 1.0  # seconds
PATIENCE = 30.0  # seconds that the log may be away while an execution is followed
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
        story = in_loop(_run(memory, source, others, workload, assignments or [], show))
    finish(story, as_json, durable=not memory, lines=show.left())


@contextmanager
def _refused_as_json(as_json: bool) -> Iterator[None]:
    """A program that asked for an object gets one also when nothing was begun."""
    try:
        yield
    except Exception as error:
        why = cause(error)
        if not as_json or not isinstance(why, NoetlError):
            raise
        sys.stdout.write(json.dumps(refusal(why), ensure_ascii=False) + "\n")
        raise typer.Exit(complain(why)) from error


def _dry_run(source: "PlaybookSource", workload: dict[str, Any], as_json: bool) -> None:
    from noetl.cli.dryrun import planned, print_plan
    from noetl.cli.language import load_or_raise
    from noetl.cli.output import say_json
    from noetl.cli.tools import tools
    from noetl.settings import HomeSettings, read
    from noetl.tools import registry

    text = source.text if source.text is not None else in_loop(_stored(source.name))
    playbook = load_or_raise(text, source.name)
    plan = planned(playbook, workload)
    in_loop(_ask_what_is_there(plan))
    here = (*registry.default().kinds, *tools(read(HomeSettings).where))
    say_json(plan) if as_json else print_plan(plan, playbook, here)


async def _ask_what_is_there(plan: dict[str, Any]) -> None:
    """Add what is missing and what the state holds, unless there is no server and no database of this machine that could know."""
    from noetl.cli.client import connect
    from noetl.cli.dryrun import current_state, find_missing
    from noetl.embedded.cluster import PostgresCluster
    from noetl.settings import HomeSettings, Store, read

    place = read(HomeSettings)
    if (
        not place.servers
        and read(Store).db_url is None
        and PostgresCluster(place.where).major() is None
    ):
        return
    async with connect("read") as client:
        plan["missing"] = await find_missing(plan["uses"], client)
        plan["state"]["now"] = await current_state(plan["state"], plan["path"], client)


async def _stored(path: str) -> str:
    from noetl.cli.client import connect

    async with connect("read") as client:
        return str((await client.playbook(path))["content"])


def _begin_early(source: "PlaybookSource") -> None:
    """The database, and Spark where a step needs it, start while this process still loads. Whatever goes wrong with them is said
    when they are asked for."""
    if os.environ.get("NOETL_SERVER_URL"):
        return
    from threading import Thread

    if _ON_SPARK.search(source.text or ""):
        Thread(target=_begin_spark, args=(source,), name="early-spark", daemon=True).start()
    if os.environ.get("NOETL_DB_URL"):
        return
    from noetl.embedded import ensure

    def begin() -> None:
        with suppress(Exception):
            asyncio.run(ensure())

    Thread(
        target=begin, name="early"
    ).start()  # not a daemon: a database that is being made is made whole


def _begin_spark(source: "PlaybookSource") -> None:
    from noetl.cli.language import load_or_raise
    from noetl.cli.tools import begin_spark

    with suppress(Exception):
        load_or_raise(
            source.text or "", source.name
        )  # nothing is started for a playbook that will be refused
        begin_spark()


def finish(
    story: "Story", as_json: bool, *, durable: bool = True, lines: "Sequence[str]" = ()
) -> None:
    """Say how it ended, and end as it did."""
    if as_json:
        sys.stdout.write(json.dumps(story.to_dict(), ensure_ascii=False) + "\n")
    else:
        from noetl.cli.story import print_end

        print_end(story, durable=durable, lines=lines)
    raise typer.Exit(0 if story.status == "completed" else FAILED)


# ---- following ---------------------------------------------------------------------------------------------------------


class Show(Protocol):
    """What a person sees while an execution is followed. `logs`: what its steps print is wanted too; `live`: how far its tools
    are, too."""

    logs: bool

    @property
    def live(self) -> bool: ...
    def __call__(self, story: "Story") -> None: ...
    def printed(self, rows: "list[Row]") -> None: ...
    def left(self) -> "Sequence[str]":
        """Lines that are to be told with the end."""
        ...


class FollowedExecution(Protocol):
    """Where an execution can be followed: a `Client`, or the twins in memory."""

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
            with suppress(NotFound):  # said when it is started
                text = source.text or (assigned and (await client.playbook(source.name))["content"])
                warn_of_strangers(text or "", assigned)
            execution_id = await begin(client, source, others, workload)
            noticing = asyncio.ensure_future(_notice(client, execution_id, show))
            try:
                return await follow(client, execution_id, show, stop)
            finally:
                noticing.cancel()


async def _notice(client: "Client", execution_id: "ExecutionId", show: Show) -> None:
    """A server without a worker would be waited for in silence; so would anything long where no terminal shows it."""
    await asyncio.sleep(NOTICE)
    if not show.live:
        where = f"execution {execution_id} is under way: noetl exec get {execution_id} says how far"
        print(as_called(where), file=sys.stderr)
    with suppress(Unavailable):
        if client.runs and not await client.workers():
            print(
                as_called("no worker is there yet: noetl worker start; Ctrl-C cancels"),
                file=sys.stderr,
            )


async def _in_memory(
    source: "PlaybookSource",
    others: "list[PlaybookSource]",
    workload: dict[str, Any],
    show: Show,
    stop: asyncio.Event,
) -> "Story":
    from noetl.cli.memory import MemoryCluster
    from noetl.model.commands import USUAL_POOLS

    async with MemoryCluster(pools=(*USUAL_POOLS, *pools_in(source, *others))) as cluster:
        for other in others:
            await cluster.register(other.text or "", other.name)
        execution_id = await cluster.start(source.text or "", source.name, workload)
        return await follow(cluster, execution_id, show, stop)


def pools_in(*sources: "PlaybookSource") -> tuple[str, ...]:
    """Names that may be pools of their steps: taken from the text, since one too many does no harm."""
    found = [
        name
        for source in sources
        for name in re.findall(r"""\bpool:\s*["']?([\w.-]+)""", source.text or "")
    ]
    return tuple(dict.fromkeys(found))


async def begin(
    client: "Client",
    source: "PlaybookSource",
    others: "list[PlaybookSource]",
    workload: dict[str, Any],
) -> "ExecutionId":
    for other in others:
        await _registered(client, other)
    if source.text is not None:
        row = await _registered(client, source)
        return await client.start(
            row["path"], row["version"], workload
        )  # this text, though a later one may stand there
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

    load_or_raise(source.text or "", source.name)  # here: so that findings name the file
    return await client.register(source.text or "")


async def meant(client: "Client", path: str) -> str:
    """A hint for whoever named a playbook that is not there."""
    from difflib import get_close_matches

    names = [row["path"] for row in await client.playbooks()]
    close = get_close_matches(path, names, 1)
    return f"did you mean {close[0]}?" if close else "noetl catalog list shows what there is"


async def follow(
    site: FollowedExecution, execution_id: "ExecutionId", show: Show, stop: asyncio.Event
) -> "Story":
    """The execution to its end; `show` is called whenever something was recorded. Cancels it when told to stop."""
    from noetl.cli.story import Story

    story, asked = Story(execution_id), False
    async with _logs_told(site, story, show), _progress_told(site, story, show):
        while not story.ended:
            if stop.is_set() and not asked:
                asked = True
                await _cancel(site, execution_id)
            recorded = await _next(site, story, stop if not asked else asyncio.Event())
            story.add(recorded)
            if recorded:
                show(story)
    await story.settle(site.resolve, site.preview)
    story.workload = await site.workload(execution_id)
    if story.status == "failed":
        with suppress(Unavailable):  # the failure itself is known
            story.cause = await site.cause(execution_id, story.last_seq)
    return story


@asynccontextmanager
async def _logs_told(site: FollowedExecution, story: "Story", show: Show) -> AsyncIterator[None]:
    """Beside the events; the last lines are there when the execution has ended, and are waited for."""
    if not show.logs:
        yield
        return

    async def tell() -> None:
        async with aclosing(site.logs(story.state.execution_id, follow=True)) as pages:
            async for rows in pages:
                show.printed(rows)

    telling = asyncio.ensure_future(tell())
    try:
        yield
        if story.state.terminal:
            await asyncio.wait((telling,), timeout=LAST_LINES)
    finally:
        telling.cancel()
        (ended,) = await asyncio.gather(telling, return_exceptions=True)
    if isinstance(ended, Unavailable):
        print(f"the rest of the log could not be read: {ended}", file=sys.stderr)
    elif isinstance(ended, Exception):
        raise ended


@asynccontextmanager
async def _progress_told(
    site: FollowedExecution, story: "Story", show: Show
) -> AsyncIterator[None]:
    """How far the tools of commands are that take their time. It is asked for: nothing is recorded of it."""
    if not show.live:
        yield
        return

    async def tell() -> None:
        before: set[str] = set()
        while True:
            await asyncio.sleep(PROGRESS_EVERY)
            lasting, before = before & story.state.commands.keys(), set(story.state.commands)
            with suppress(Unavailable):
                rows = await site.queue("leased", story.state.execution_id) if lasting else []
                story.said = {row["step"]: row["progress"] for row in rows if row["progress"]}
                show(story)

    telling = asyncio.ensure_future(tell())
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _cancel(site: FollowedExecution, execution_id: "ExecutionId") -> None:
    print(f"cancelling execution {execution_id}; Ctrl-C again leaves at once", file=sys.stderr)
    with suppress(Conflict):  # it has ended meanwhile
        await site.change(execution_id, "cancel")


async def _next(site: FollowedExecution, story: "Story", stop: asyncio.Event) -> "list[Recorded]":
    """What comes next; nothing when told to stop first. The log may be away for a while."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        reading = asyncio.ensure_future(site.events_after(story.state.execution_id, story.last_seq))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else []
        except Unavailable:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.2)
        finally:
            for task in (reading, stopping):
                task.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)


@asynccontextmanager
async def interruptible() -> AsyncIterator[asyncio.Event]:
    """Set by the first Ctrl-C (or SIGTERM); the second one ends the process, which leaves the execution as it is."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def heard() -> None:
        if stop.is_set():
            os._exit(LEFT)  # whatever hangs, hangs no longer; children notice by themselves
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, heard)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def told(as_json: bool, watch: bool, logs: bool = False) -> Show:
    from noetl.cli.story import EventLines, Silent, StepDisplay

    if as_json:
        return Silent(logs)
    return EventLines(logs) if watch else StepDisplay(logs)


# ---- what the user gave ------------------------------------------------------------------------------------------------


class PlaybookSource:
    """What the user named: a file with its text, or a path of the catalog."""

    def __init__(self, name: str, text: str | None) -> None:
        self.name = name
        self.text = text

    @classmethod
    def of(cls, given: str) -> "PlaybookSource":
        """What looks like a file and is not there is a mistake, not a path of the catalog."""
        file = Path(given)
        if file.suffix in (".yaml", ".yml") or file.exists() or given.startswith((".", "/", "~")):
            return cls(given, read(file.expanduser()))
        return cls(given, None)


def read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror or error}", hint=_similar(file)) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file}: not UTF-8 text") from error


def _similar(file: Path) -> str | None:
    from difflib import get_close_matches

    names = os.listdir(file.parent) if file.parent.is_dir() else []
    close = get_close_matches(
        file.name, [name for name in names if name != file.name], 1, cutoff=0.75
    )
    return f"did you mean {file.parent / close[0]}?" if close else None


def values_of(payload: Path | None) -> dict[str, Any]:
    if payload is None:
        return {}
    values = plain(read(payload), str(payload))
    if not isinstance(values, dict):
        raise InvalidInput(f"{payload}: a payload is a mapping of workload names to values")
    return values


def merged(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """`--set a.b=1` over the payload: `{"a": {"b": 1}}`."""
    from noetl.playbook.workload import over

    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        path = name.strip().split(".")
        if not equals or not all(path):
            raise InvalidInput(
                f"--set {assignment!r}: no name and value",
                hint="--set name=value, for example --set limit=20",
            )
        given: Any = plain(text, f"--set {name}")
        for part in reversed(path):
            given = {part: given}
        values = over(values, given)
    return values


def warn_of_strangers(text: str, assignments: list[str]) -> None:
    """What is set, and neither declared nor used by the playbook, is most likely a slip."""
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

    known: Any = workload
    parts = name.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(known, dict):
            return
        if part not in known:
            whole = ".".join(["workload", *parts[: depth + 1]])
            if not re.search(rf"\b{re.escape(whole)}\b", text):
                close = get_close_matches(part, list(known), 1)
                meant = ".".join([*parts[:depth], *close])
                yield f"the playbook has no {whole}" + (f": did you mean {meant}?" if close else "")
            return
        known = known[part]


def plain(text: str, where: str) -> Any:
    """YAML as plain data, within the limits of a playbook: no tags, no duplicate keys."""
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
