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
from noetl.cli.output import print_json_lines, print_table, say, say_row
from noetl.spark.profiles import NONE

if TYPE_CHECKING:
    from noetl.cli.embedded import HomePorts
    from noetl.server.duties.jobs import Run
    from noetl.spark.jobs.execution_map import ExecutionMap
    from noetl.spark.jobs.lake import LakeStore
    from noetl.spark.jobs.rebuild import RebuildJob

log = logging.getLogger(__name__)

# microseconds
DAY_MICROS = 86_400_000_000
WEEK_MICROS = 7 * DAY_MICROS

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
LakeOption = Annotated[
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


ABOUT = """Run one of NoETL's own pipelines over its log. Servers may run at the same time.

\b
  noetl job export      new events into Parquet files by day
  noetl job compact     events of executions that ended long ago into files
  noetl job rebuild     every projection anew from its events
  noetl job stats       durations, failures, retries and bytes by playbook and step
"""


def export(to: LakeOption = None, as_json: AsJson = False) -> None:
    """Write events that were not exported yet to Parquet files by day, each event once.

    The columns are those of ClickHouse's `observability.noetl_events`; docs/jobs.md has the table. It may be interrupted and
    repeated at any time.

    Example: noetl job export --to /data/lake
    """

    async def work(ports: "HomePorts") -> Any:
        from noetl.spark.jobs.export import export_log as run

        history = _open_configured_lake(ports.home)
        lake = history if to is None else _open_configured_lake(ports.home, to)
        return await asyncio.to_thread(run, ports.control, lake, history)

    counts = _run_with_home(work)
    _print_counts({"events": counts.events, "files": counts.files}, as_json)


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
        from noetl.settings import RetentionSettings, read_settings
        from noetl.spark.jobs.compact import compact_log as run

        retention = read_settings(RetentionSettings, retention_days=days)
        before = ports.clock.now() - round(retention.retention_days * DAY_MICROS)
        return await asyncio.to_thread(
            run, ports.control, _open_configured_lake(ports.home), before
        )

    counts = _run_with_home(work)
    row = {
        "executions": counts.executions,
        "events": counts.events,
        "files": counts.files,
        "partitions": counts.partitions,
    }
    _print_counts(row, as_json)


def rebuild(as_json: AsJson = False) -> None:
    """Fold every execution from its events and write the rows that differ from that.

    Rows are what lists and `exec get` read. A server that runs goes on: what it writes is newer.
    """

    async def work(ports: "HomePorts") -> Any:
        from noetl.spark.jobs.rebuild import rebuild_rows as run

        with _open_job_place(ports.home) as runs:
            job = await _make_rebuild_job(ports, runs)
            return await asyncio.to_thread(run, job)

    counts = _run_with_home(work)
    _print_counts({"executions": counts.executions, "written": counts.written}, as_json)


def stats(
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="default: a week ago")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="default: now")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one row per line")] = False,
) -> None:
    """Count executions that began in a period, by playbook and step: runs, failures, retries, bytes, seconds.

    A row without a step is of whole executions. Times without a zone are UTC.

    Example: noetl job stats --since 2026-01-01 --until 2026-02-01T12:00
    """

    async def work(ports: "HomePorts") -> Any:
        from noetl.spark.jobs.stats import compute_stats as run

        now = ports.clock.now()
        period = _parse_time(since, now - WEEK_MICROS), _parse_time(until, now)
        lake = _open_configured_lake(ports.home)
        with _open_job_place(ports.home) as runs:
            return await asyncio.to_thread(run, ports.control, lake, runs, *period)

    rows = _run_with_home(work)
    if as_json:
        print_json_lines(rows)
    elif not rows:
        say("no execution began then")
    else:
        print_table(STATS_HEADER, [list(map(_format_stats_cell, row.values())) for row in rows])


def _format_stats_cell(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value


def _parse_time(text: str | None, otherwise: int) -> int:
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
        str | None, typer.Argument(metavar="[ID]", help="one execution; default: all")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one difference per line")] = False,
) -> None:
    """Fold executions from their events, compare them with the stored rows, and print every difference.

    Exit code: 0 no difference, 1 some. `noetl job rebuild` corrects them.

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
        from noetl.spark.jobs.execution_map import LocalExecutionMap
        from noetl.spark.jobs.rebuild import verify_rows as run

        if execution is not None:
            if await ports.stores.log.find_tenant(ExecutionId(execution)) is None:
                raise NotFound(
                    f"no execution {execution}", hint="noetl exec list shows those there are"
                )
            job = await _make_rebuild_job(ports, LocalExecutionMap())
            return await asyncio.to_thread(lambda: list(run(job, int(execution))))
        with _open_job_place(ports.home) as runs:
            job = await _make_rebuild_job(ports, runs)
            return await asyncio.to_thread(lambda: list(run(job)))

    differences = _run_with_home(work)
    if as_json:
        print_json_lines(map(asdict, differences))
    elif differences:
        print_table(
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
    """Query the log with Spark SQL: the tables `events`, `executions` and `results`, and rows of results by name.

    The table `events` includes those that `noetl job compact` has moved to files.

    \b
    Examples:
      noetl sql "select path, status, count(*) from executions group by all order by all"
      noetl sql "select step, count(*) from events where event_type = 'command.failed' group by step"
      noetl sql "select sum(amount) from orders" --with orders=@latest/load
    """
    import tempfile

    from noetl.cli.results import to_table_cell
    from noetl.model.errors import InvalidInput
    from noetl.settings import SparkSettings, read_settings
    from noetl.spark.jobs.query import list_answer_records, list_answer_rows, parse_question

    if read_settings(SparkSettings).profile == NONE:
        raise InvalidInput(
            "noetl sql needs Spark", hint="NOETL_SPARK_PROFILE is none; local starts one here"
        )
    statement, tables = parse_question(text), _parse_tables(rows or [])
    with tempfile.TemporaryDirectory(prefix="noetl-rows-") as folder:
        files = _save_results(tables, Path(folder))

        async def work(ports: "HomePorts") -> Any:
            return await asyncio.to_thread(_run_query, ports, statement, files)

        answer = _run_with_home(work)
    if as_json:
        print_json_lines(list_answer_records(answer))
    else:
        print_table(
            answer.column_names, [list(map(to_table_cell, row)) for row in list_answer_rows(answer)]
        )


def _run_query(ports: "HomePorts", text: str, files: dict[str, Path]) -> Any:
    from noetl.spark.jobs.query import find_mentioned_tables, open_query

    with (
        _hold_spark_server(ports.home) as url,
        open_query(
            ports.control,
            _open_configured_lake(ports.home),
            url,
            find_mentioned_tables(text),
            files,
        ) as ask,
    ):
        return ask(text)


def _parse_tables(options: list[str]) -> dict[str, tuple[str, str]]:
    """The execution and step of each table of `--with`, by the table's name."""
    from noetl.model.errors import InvalidInput
    from noetl.spark.jobs.query import TABLE_NAMES

    tables: dict[str, tuple[str, str]] = {}
    for option in options:
        name, _, result = option.partition("=")
        execution, _, step = result.partition("/")
        if not (name.isidentifier() and execution and step):
            raise InvalidInput(
                f"--with {option!r}", hint="NAME=ID/STEP, as in --with orders=@latest/load"
            )
        if name.lower() in (*TABLE_NAMES, *map(str.lower, tables)):
            raise InvalidInput(
                f"--with {option!r}: there is a table {name} already",
                hint="give the rows another name, and ask for that",
            )
        tables[name] = execution, step
    return tables


def _save_results(tables: dict[str, tuple[str, str]], folder: Path) -> dict[str, Path]:
    """Save the rows of the named results in files. Returns the files by table name."""
    from noetl.cli.client import Client, find_execution_id
    from noetl.cli.executions import run_with_client
    from noetl.cli.results import write_file

    async def work(client: Client) -> dict[str, Path]:
        files = {}
        for name, (execution, step) in tables.items():
            files[name] = folder / f"{name}.parquet"
            execution_id = await find_execution_id(client, execution)
            await write_file(client.download_result(execution_id, step, "parquet"), files[name])
        return files

    if not tables:
        return {}
    files: dict[str, Path] = run_with_client(work)
    return files


# ---- by the clock --------------------------------------------------------------------------------------------------------


def make_scheduled_jobs() -> "dict[str, Run]":
    """The jobs that a server runs by the clock. Each runs in a process of its own."""
    from functools import partial

    from noetl.settings import RetentionSettings, read_settings

    retention = read_settings(RetentionSettings)
    jobs = {"export": retention.export_enabled, "compact": retention.compactor_enabled}
    return {name: partial(_run_job_process, name) for name, enabled in jobs.items() if enabled}


async def _run_job_process(name: str) -> None:
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


def _print_counts(counts: dict[str, Any], as_json: bool) -> None:
    sentence = ", ".join(f"{value} {name}" for name, value in counts.items())
    say_row(counts, sentence, as_json=as_json)


def _run_with_home(work: "Callable[[HomePorts], Awaitable[Any]]") -> Any:
    """Open the ports of the home, run `work` with them, and return its result."""

    async def run_work() -> Any:
        from noetl.cli.embedded import open_home
        from noetl.settings import HomeSettings, read_settings

        async with open_home(read_settings(HomeSettings).home_path) as ports:
            return await work(ports)

    return asyncio.run(run_work())


def _open_configured_lake(home: Path, place: str | None = None) -> "LakeStore":
    from noetl.cli.lake import open_lake
    from noetl.settings import StorageSettings, read_settings

    return open_lake(home, read_settings(StorageSettings), place)


@contextmanager
def _open_job_place(home: Path) -> "Iterator[ExecutionMap]":
    """The place where the function of a job runs for each execution: Spark, or this process."""
    from noetl.settings import SparkSettings, read_settings
    from noetl.spark.jobs.execution_map import LocalExecutionMap, SparkExecutionMap

    if read_settings(SparkSettings).profile == NONE:
        yield LocalExecutionMap()
        return
    with _hold_spark_server(home) as url:
        yield SparkExecutionMap(url)


@contextmanager
def _hold_spark_server(home: Path) -> Iterator[str]:
    """The address of a Spark server. It does not stop while the context is open."""
    from noetl.settings import SparkSettings, read_settings
    from noetl.spark.profiles import parse_profile
    from noetl.spark.server.process import SparkServerSettings
    from noetl.spark.server.server_start import ensure_spark_server
    from noetl.spark.server.server_state import SparkServerState

    spark = read_settings(SparkSettings)
    chosen_profile, place = parse_profile(spark.profile), SparkServerState.from_home(home)
    use = place.begin_use() if chosen_profile.url is None else None
    try:
        yield ensure_spark_server(
            home, chosen_profile, SparkServerSettings(spark.idle_sec, spark.java_options)
        )
    finally:
        if use is not None:
            place.end_use(use)


async def _make_rebuild_job(ports: "HomePorts", runs: "ExecutionMap") -> "RebuildJob":
    from noetl.spark.jobs.rebuild import RebuildJob

    return RebuildJob(
        ports.control,
        _open_configured_lake(ports.home),
        runs,
        await _find_unreadable_playbooks(ports),
    )


async def _find_unreadable_playbooks(ports: "HomePorts") -> dict[str, str]:
    """Pinned playbooks that cannot be read any more, with the error of each."""
    from noetl.server.dispatch.playbooks import Playbooks

    playbooks, errors = Playbooks(ports.catalog, limit=1), {}
    for content in await ports.stores.log.list_pinned_playbooks():
        try:
            await playbooks.get_plan(content)
        except Exception as error:  # the projector writes the same words
            errors[content] = f"{type(error).__name__}: {error}"
    return errors
