"""Runs the jobs over the log: the work of `noetl job`, `noetl verify` and `noetl sql`."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from noetl.model.errors import NotFound
from noetl.model.ids import ExecutionId
from noetl.runtime.home import HomePorts
from noetl.runtime.lake import open_lake
from noetl.server.dispatch.playbooks import Playbooks
from noetl.settings import RetentionSettings, SparkSettings, StorageSettings, read_settings
from noetl.spark.jobs.compact import CompactionCounts, compact_log
from noetl.spark.jobs.execution_map import ExecutionMap, LocalExecutionMap, SparkExecutionMap
from noetl.spark.jobs.export import ExportCounts, export_log
from noetl.spark.jobs.lake import LakeStore
from noetl.spark.jobs.query import find_mentioned_tables, open_query
from noetl.spark.jobs.rebuild import (
    RebuildCounts,
    RebuildJob,
    RowDifference,
    rebuild_rows,
    verify_rows,
)
from noetl.spark.jobs.stats import compute_stats
from noetl.spark.profiles import NONE, parse_profile
from noetl.spark.server.process import SparkServerSettings
from noetl.spark.server.server_start import ensure_spark_server
from noetl.spark.server.server_state import SparkServerState

DAY_MICROS = 86_400_000_000  # microseconds


async def run_export(ports: HomePorts, to: str | None) -> ExportCounts:
    """Export new events to the lake, or to the directory or URL `to`."""
    history = _open_configured_lake(ports.home)
    lake = history if to is None else _open_configured_lake(ports.home, to)
    return await asyncio.to_thread(export_log, ports.control, lake, history)


async def run_compact(ports: HomePorts, days: float | None) -> CompactionCounts:
    """Move events of executions that ended `days` ago or earlier; None: as the settings say."""
    retention = read_settings(RetentionSettings, retention_days=days)
    before = ports.clock.now() - round(retention.retention_days * DAY_MICROS)
    return await asyncio.to_thread(
        compact_log, ports.control, _open_configured_lake(ports.home), before
    )


async def run_rebuild(ports: HomePorts) -> RebuildCounts:
    with _open_job_place(ports.home) as runs:
        job = await _make_rebuild_job(ports, runs)
        return await asyncio.to_thread(rebuild_rows, job)


async def run_stats(
    ports: HomePorts,
    since: int,
    until: int,
) -> list[dict[str, Any]]:
    """Statistics of executions that began in [since, until), both in microseconds."""
    lake = _open_configured_lake(ports.home)
    with _open_job_place(ports.home) as runs:
        return await asyncio.to_thread(compute_stats, ports.control, lake, runs, since, until)


async def run_verify(ports: HomePorts, execution: str | None) -> list[RowDifference]:
    """The differences of one execution, or of all."""
    if execution is not None:
        if await ports.stores.log.find_tenant(ExecutionId(execution)) is None:
            raise NotFound(
                f"no execution {execution}", hint="noetl exec list shows those there are"
            )
        job = await _make_rebuild_job(ports, LocalExecutionMap())
        return await asyncio.to_thread(lambda: list(verify_rows(job, int(execution))))
    with _open_job_place(ports.home) as runs:
        job = await _make_rebuild_job(ports, runs)
        return await asyncio.to_thread(lambda: list(verify_rows(job)))


def run_query(ports: HomePorts, text: str, files: dict[str, Path]) -> Any:
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


def _open_configured_lake(home: Path, place: str | None = None) -> LakeStore:
    return open_lake(home, read_settings(StorageSettings), place)


@contextmanager
def _open_job_place(home: Path) -> Iterator[ExecutionMap]:
    """The place where the function of a job runs for each execution: Spark, or this process."""
    if read_settings(SparkSettings).profile == NONE:
        yield LocalExecutionMap()
        return
    with _hold_spark_server(home) as url:
        yield SparkExecutionMap(url)


@contextmanager
def _hold_spark_server(home: Path) -> Iterator[str]:
    """The address of a Spark server. It does not stop while the context is open."""
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


async def _make_rebuild_job(ports: HomePorts, runs: ExecutionMap) -> RebuildJob:
    return RebuildJob(
        ports.control,
        _open_configured_lake(ports.home),
        runs,
        await _find_unreadable_playbooks(ports),
    )


async def _find_unreadable_playbooks(ports: HomePorts) -> dict[str, str]:
    """Pinned playbooks that cannot be read any more, with the error of each."""
    playbooks, errors = Playbooks(ports.catalog, limit=1), {}
    for tenant, content in await ports.stores.log.list_pinned_playbooks():
        try:
            await playbooks.get_plan(content, tenant)
        except Exception as error:  # the projector writes the same words
            errors[content] = f"{type(error).__name__}: {error}"
    return errors
