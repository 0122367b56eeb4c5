"""`noetl job`, `noetl verify` and `noetl sql`: NoETL's own pipelines over its log.

They work directly on the database of NOETL_DB_URL or of this machine. Servers may run meanwhile.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noetl.cli.executions import AsJson
from noetl.cli.output import columns, lines_of, say, say_row
from noetl.spark.profiles import NONE

if TYPE_CHECKING:
    from noetl.cli.embedded import HomePorts
    from noetl.server.duties.jobs import Run
    from noetl.spark.jobs.lake import LakeStore
    from noetl.spark.jobs.places import Runs
    from noetl.spark.jobs.rebuild import RebuildJob

log = logging.getLogger(__name__)

# microseconds
DAY = 86_400_000_000
WEEK = 7 * DAY

STATS_HEADER = (
    "PLAYBOOK",
    "STEP",
    "RUNS",
    "FAILURES",
    "RETRIES",
    "BYTES",
    "P50",
    "P95",
    "P99",
    "LONGEST",
)
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="DIR",
        help="a directory or a URL (s3://bucket/prefix); without it, the lake (NOETL_STORAGE_LAKE)",
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="job", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    for command in (export, compact, rebuild, stats):
        group.command()(command)
    app.add_typer(group)
    app.command()(verify)
    app.command()(sql)


ABOUT = """NoETL's own pipelines over its log: run one now. They may run beside servers.

\b
  noetl job export      new events into Parquet files by day
  noetl job compact     events of executions that ended long ago into files
  noetl job rebuild     every projection anew from its events
  noetl job stats       durations, failures, retries and bytes by playbook and step
"""


def export(to: To = None, as_json: AsJson = False) -> None:
    """Write events that were not exported yet to Parquet files by day, each event once.

    The columns are those of ClickHouse's `observability.noetl_events`; docs/jobs.md has the table. It may be interrupted and
    repeated at any time.

    Example: noetl job export --to /data/lake
    """

    async def work(ports: "HomePorts") -> Any:
        from noetl.spark.jobs.export import export as run

        history = _lake(ports.home)
        lake = history if to is None else _lake(ports.home, to)
        return await asyncio.to_thread(run, ports.control, lake, history)

    counts = _with_database(work)
    _told({"events": counts.events, "files": counts.files}, as_json)


def compact(
    days: Annotated[
        float | None,
        typer.Option(
            "--days",
            min=0,
            metavar="N",
            help="ended so many days ago or more; NOETL_RETENTION_DAYS (30)",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Move the events of executions that ended long ago from the database to files, checked before they are removed.

    Every command still answers: `exec get`, `exec events`, `exec explain`, `trace`, `sql`, `verify`. It may be interrupted and
    repeated at any time. Servers need the lake from then on: keep it as you keep the database.

    Example: noetl job compact --days 90
    """

    async def work(ports: "HomePorts") -> Any:
        from noetl.settings import Retention, read
        from noetl.spark.jobs.compact import compact as run

        retention = read(Retention, retention_days=days)
        before = ports.clock.now() - round(retention.retention_days * DAY)
        return await asyncio.to_thread(run, ports.control, _lake(ports.home), before)

    counts = _with_database(work)
    row = {
        "executions": counts.executions,
        "events": counts.events,
        "files": counts.files,
        "partitions": counts.partitions,
    }
    _told(row, as_json)


def rebuild(as_json: AsJson = False) -> None:
    """Fold every execution from its events and write the rows that differ from that.

    Rows are what lists and `exec get` read. A server that runs goes on: what it writes is newer.
    """

    async def work(ports: "HomePorts") -> Any:
        from noetl.spark.jobs.rebuild import rebuild as run

        with _runs(ports.home) as runs:
            job = await _rebuild_job(ports, runs)
            return await asyncio.to_thread(run, job)

    counts = _with_database(work)
    _told({"executions": counts.executions, "written": counts.written}, as_json)


def stats(
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="a week ago, unless it is given")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="now, unless it is given")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one row per line")] = False,
) -> None:
    """Count executions that began in a period, by playbook and step: runs, failures, retries, bytes, seconds.

    A row without a step is of whole executions. Times are UTC unless they say otherwise.

    Example: noetl job stats --since 2026-01-01 --until 2026-02-01T12:00
    """

    async def work(ports: "HomePorts") -> Any:
        from noetl.spark.jobs.stats import stats as run

        now = ports.clock.now()
        period = _moment(since, now - WEEK), _moment(until, now)
        lake = _lake(ports.home)
        with _runs(ports.home) as runs:
            return await asyncio.to_thread(run, ports.control, lake, runs, *period)

    rows = _with_database(work)
    if as_json:
        lines_of(rows)
    elif not rows:
        say("no execution began then")
    else:
        columns(STATS_HEADER, [list(map(_stats_cell, row.values())) for row in rows])


def _stats_cell(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value


def _moment(text: str | None, otherwise: int) -> int:
    """A time of the command line in microseconds. Times without a zone are UTC."""
    from datetime import UTC, datetime

    from noetl.model.errors import InvalidInput

    if text is None:
        return otherwise
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{text!r} is not a time", hint="2026-01-31 or 2026-01-31T12:00"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1e6)


def verify(
    execution: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="one execution; without it, all there are")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one difference per line")] = False,
) -> None:
    """Fold executions from their events and compare with what is stored; say every difference.

    Exit code: 0 there is none, 1 there are some. `noetl job rebuild` mends them.

    \b
    Examples:
      noetl verify
      noetl verify 724551830122291200
    """
    from dataclasses import asdict

    from noetl.model.errors import NotFound
    from noetl.model.ids import ExecutionId

    if execution is not None and not (execution.isascii() and execution.isdigit()):
        raise NotFound(
            f"{execution!r} is not an execution id", hint="a number; noetl exec list shows them"
        )

    async def work(ports: "HomePorts") -> list[Any]:
        from noetl.spark.jobs.places import InProcess
        from noetl.spark.jobs.rebuild import verify as run

        if execution is not None:
            if await ports.log.tenant_of(ExecutionId(execution)) is None:
                raise NotFound(
                    f"no execution {execution}", hint="noetl exec list shows those there are"
                )
            job = await _rebuild_job(ports, InProcess())
            return await asyncio.to_thread(lambda: list(run(job, int(execution))))
        with _runs(ports.home) as runs:
            job = await _rebuild_job(ports, runs)
            return await asyncio.to_thread(lambda: list(run(job)))

    differences = _with_database(work)
    if as_json:
        lines_of(map(asdict, differences))
    elif differences:
        columns(
            ("EXECUTION", "FIELD", "STORED", "FOLDED"),
            [
                (
                    difference.execution_id,
                    difference.field or "(row)",
                    difference.stored,
                    difference.folded,
                )
                for difference in differences
            ],
        )
    else:
        say("every row is the fold of its events")
    raise typer.Exit(int(bool(differences)))


def sql(
    text: Annotated[
        str, typer.Argument(metavar="SQL", help="one statement of Spark SQL that reads")
    ],
    rows: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME=ID/STEP",
            help="the rows of a step's result as a table; may be repeated",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one row per line")] = False,
) -> None:
    """Ask the log by Spark SQL: tables `events`, `executions`, `results`, and rows of results by name.

    Events that `noetl job compact` has moved to files are among the others.

    \b
    Examples:
      noetl sql "select path, status, count(*) from executions group by all order by all"
      noetl sql "select step, count(*) from events where event_type = 'command.failed' group by step"
      noetl sql "select sum(amount) from orders" --with orders=@latest/load
    """
    import tempfile

    from noetl.cli.results import cell
    from noetl.model.errors import InvalidInput
    from noetl.settings import SparkSettings, read
    from noetl.spark.jobs.query import question, records_of, rows_of

    if read(SparkSettings).profile == NONE:
        raise InvalidInput(
            "noetl sql needs Spark", hint="NOETL_SPARK_PROFILE is none; local starts one here"
        )
    statement, tables = question(text), _named(rows or [])
    with tempfile.TemporaryDirectory(prefix="noetl-rows-") as folder:
        files = _fetched(tables, Path(folder))

        async def work(ports: "HomePorts") -> Any:
            return await asyncio.to_thread(_asked, ports, statement, files)

        answer = _with_database(work)
    if as_json:
        lines_of(records_of(answer))
    else:
        columns(answer.column_names, [list(map(cell, row)) for row in rows_of(answer)])


def _asked(ports: "HomePorts", text: str, files: dict[str, Path]) -> Any:
    from noetl.spark.jobs.query import asking, mentioned

    with (
        _spark(ports.home) as url,
        asking(
            ports.control,
            _lake(ports.home),
            url,
            mentioned(text),
            files,
        ) as ask,
    ):
        return ask(text)


def _named(options: list[str]) -> dict[str, tuple[str, str]]:
    """The execution and step of each table of `--with`, by the table's name."""
    from noetl.model.errors import InvalidInput
    from noetl.spark.jobs.query import NAMES

    tables: dict[str, tuple[str, str]] = {}
    for option in options:
        name, _, result = option.partition("=")
        execution, _, step = result.partition("/")
        if not (name.isidentifier() and execution and step):
            raise InvalidInput(
                f"--with {option!r}", hint="NAME=ID/STEP, as in --with orders=@latest/load"
            )
        if name.lower() in (*NAMES, *map(str.lower, tables)):
            raise InvalidInput(
                f"--with {option!r}: there is a table {name} already",
                hint="give the rows another name, and ask for that",
            )
        tables[name] = execution, step
    return tables


def _fetched(tables: dict[str, tuple[str, str]], folder: Path) -> dict[str, Path]:
    """Save the rows of the named results in files. Returns the files by table name."""
    from noetl.cli.client import Client, named
    from noetl.cli.executions import talk
    from noetl.cli.results import write_file

    async def work(client: Client) -> dict[str, Path]:
        files = {}
        for name, (execution, step) in tables.items():
            files[name] = folder / f"{name}.parquet"
            execution_id = await named(client, execution)
            await write_file(client.download(execution_id, step, "parquet"), files[name])
        return files

    if not tables:
        return {}
    files: dict[str, Path] = talk(work)
    return files


# ---- by the clock --------------------------------------------------------------------------------------------------------


def scheduled() -> "dict[str, Run]":
    """The jobs that a server runs by the clock. Each runs in a process of its own."""
    from functools import partial

    from noetl.settings import Retention, read

    retention = read(Retention)
    jobs = {"export": retention.export_enabled, "compact": retention.compactor_enabled}
    return {name: partial(_apart, name) for name, enabled in jobs.items() if enabled}


async def _apart(name: str) -> None:
    """Run a job in a process of its own. A cancelled job is killed; the next run repeats its work."""
    from noetl.model.errors import NoetlError

    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "noetl",
        "job",
        name,
        "--json",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise NoetlError(f"job {name}: {err.decode(errors='replace').strip()}")
    log.info("job done", extra={"job": name, "found": out.decode().strip()})


# ---- what jobs need --------------------------------------------------------------------------------------------------------


def _told(counts: dict[str, Any], as_json: bool) -> None:
    sentence = ", ".join(f"{value} {name}" for name, value in counts.items())
    say_row(counts, sentence, as_json=as_json)


def _with_database(work: "Callable[[HomePorts], Awaitable[Any]]") -> Any:
    """Open the ports of the home, run `work` with them, and return its result."""

    async def run_work() -> Any:
        from noetl.cli.embedded import opened
        from noetl.settings import HomeSettings, read

        async with opened(read(HomeSettings).where) as ports:
            return await work(ports)

    return asyncio.run(run_work())


def _lake(home: Path, place: str | None = None) -> "LakeStore":
    from noetl.cli.lake import open_lake
    from noetl.settings import Storage, read

    return open_lake(home, read(Storage), place)


@contextmanager
def _runs(home: Path) -> "Iterator[Runs]":
    """The place where the function of a job runs for each execution: Spark, or this process."""
    from noetl.settings import SparkSettings, read
    from noetl.spark.jobs.places import InProcess, OnSpark

    if read(SparkSettings).profile == NONE:
        yield InProcess()
        return
    with _spark(home) as url:
        yield OnSpark(url)


@contextmanager
def _spark(home: Path) -> Iterator[str]:
    """The address of a Spark server. It does not stop while the context is open."""
    from noetl.settings import SparkSettings, read
    from noetl.spark.place import SparkPlace
    from noetl.spark.profiles import profile
    from noetl.spark.serve import Serving
    from noetl.spark.starting import ensure

    spark = read(SparkSettings)
    chosen_profile, place = profile(spark.profile), SparkPlace.below(home)
    use = place.use() if chosen_profile.url is None else None
    try:
        yield ensure(home, chosen_profile, Serving(spark.idle_sec, spark.java_options))
    finally:
        if use is not None:
            place.leave(use)


async def _rebuild_job(ports: "HomePorts", runs: "Runs") -> "RebuildJob":
    from noetl.spark.jobs.rebuild import RebuildJob

    return RebuildJob(ports.control, _lake(ports.home), runs, await _unreadable(ports))


async def _unreadable(ports: "HomePorts") -> dict[str, str]:
    """Pinned playbooks that cannot be read any more, with the error of each."""
    from noetl.server.playbooks import Playbooks

    playbooks, errors = Playbooks(ports.catalog, limit=1), {}
    for content in await ports.log.pinned_playbooks():
        try:
            await playbooks.plan(content)
        except Exception as error:  # the projector writes the same words
            errors[content] = f"{type(error).__name__}: {error}"
    return errors
