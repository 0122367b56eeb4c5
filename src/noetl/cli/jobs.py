"""`noetl job`, `noetl verify` and `noetl sql`: NoETL's own pipelines over its log.

They work directly on the database of NOETL_DB_URL or of this machine. Servers may run meanwhile.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from noetl.cli.client import find_execution_id, run_with_client
from noetl.cli.options import AsJson
from noetl.cli.output import print_json_lines, print_table, say, say_row
from noetl.cli.results import to_table_cell, write_file
from noetl.client.rows import RowClient
from noetl.model.errors import InvalidInput, NotFound
from noetl.runtime import log_jobs
from noetl.runtime.home import HomePorts, open_home
from noetl.settings import HomeSettings, SparkSettings, read_settings
from noetl.spark.jobs import query
from noetl.spark.profiles import NONE

# microseconds
WEEK_MICROS = 7 * 86_400_000_000

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
  noetl job rebuild     every projection again from its events
  noetl job stats       durations, failures, retries and bytes by playbook and step
"""


def export(to: LakeOption = None, as_json: AsJson = False) -> None:
    """Write events that were not exported yet to Parquet files by day, each event once.

    The columns are those of ClickHouse's `observability.noetl_events`; docs/jobs.md has the table. It may be interrupted and
    repeated at any time.

    Example: noetl job export --to /data/lake
    """

    counts = _run_with_home(partial(log_jobs.run_export, to=to))
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

    counts = _run_with_home(partial(log_jobs.run_compact, days=days))
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

    counts = _run_with_home(log_jobs.run_rebuild)
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

    async def work(ports: HomePorts) -> Any:
        now = ports.clock.now()
        period = _parse_time(since, now - WEEK_MICROS), _parse_time(until, now)
        return await log_jobs.run_stats(ports, *period)

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
    if execution is not None and not (execution.isascii() and execution.isdigit()):
        raise NotFound(
            f"{execution!r} is not an execution id", hint="a number; noetl exec list shows them"
        )

    differences = _run_with_home(partial(log_jobs.run_verify, execution=execution))
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
    if read_settings(SparkSettings).profile == NONE:
        raise InvalidInput(
            "noetl sql needs Spark", hint="NOETL_SPARK_PROFILE is none; local starts one here"
        )
    statement = query.parse_question(text)
    tables = _parse_tables(rows or [], query.TABLE_NAMES)
    with tempfile.TemporaryDirectory(prefix="noetl-rows-") as folder:
        files = _save_results(tables, Path(folder))

        async def work(ports: HomePorts) -> Any:
            return await asyncio.to_thread(log_jobs.run_query, ports, statement, files)

        answer = _run_with_home(work)
    if as_json:
        print_json_lines(query.list_answer_records(answer))
    else:
        print_table(
            answer.column_names,
            [list(map(to_table_cell, row)) for row in query.list_answer_rows(answer)],
        )


def _parse_tables(options: list[str], known: Collection[str]) -> dict[str, tuple[str, str]]:
    """The execution and step of each table of `--with`, by its name, which no known table has."""
    tables: dict[str, tuple[str, str]] = {}
    for option in options:
        name, _, result = option.partition("=")
        execution, _, step = result.partition("/")
        if not (name.isidentifier() and execution and step):
            raise InvalidInput(
                f"--with {option!r}", hint="NAME=ID/STEP, as in --with orders=@latest/load"
            )
        if name.lower() in (*known, *map(str.lower, tables)):
            raise InvalidInput(
                f"--with {option!r}: there is a table {name} already",
                hint="give the rows another name, and ask for that",
            )
        tables[name] = execution, step
    return tables


def _save_results(tables: dict[str, tuple[str, str]], folder: Path) -> dict[str, Path]:
    """Save the rows of the named results in files. Returns the files by table name."""

    async def work(client: RowClient) -> dict[str, Path]:
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


# ---- what jobs need --------------------------------------------------------------------------------------------------------


def _print_counts(counts: dict[str, Any], as_json: bool) -> None:
    sentence = ", ".join(f"{value} {name}" for name, value in counts.items())
    say_row(counts, sentence, as_json=as_json)


def _run_with_home(work: Callable[[HomePorts], Awaitable[Any]]) -> Any:
    """Open the ports of the home, run `work` with them, and return its result."""

    async def run_work() -> Any:
        async with open_home(read_settings(HomeSettings).home_path) as ports:
            return await work(ports)

    return asyncio.run(run_work())
