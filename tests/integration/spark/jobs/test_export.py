"""The log as a lake: every event once, also after crashes."""

import time
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl import faults
from noetl.model.errors import Conflict
from noetl.spark.jobs.compact import compact_log
from noetl.spark.jobs.export import LAYOUT, ExportCounts, export_log, read_manifests
from noetl.spark.jobs.lake import LakeStore, hash_stream
from tests.integration.spark.jobs.old_log import empty_lake_like, kill_job, staging_entries


def list_exported(lake: LakeStore) -> list[int]:
    """As somebody reads it who knows nothing of manifests."""
    files = [path for path in lake.list_files("events/") if path.startswith("events/day=")]
    tables = [LAYOUT.empty_table()]
    for path in files:
        with lake.open_file(path) as file:
            tables.append(pq.ParquetFile(file).read())
    rows = pa.concat_tables(tables)
    return sorted(rows.column("EventId").to_pylist())


def list_recorded(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [
            row[0]
            for row in connection.execute("select event_id from noetl.event order by event_id")
        ]


def add(dsn: str) -> None:
    """The last execution's last event once more, under another key."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "with s as (update noetl.execution_shard set last_seq = last_seq + 1 where shard_id = 1 returning last_seq)"
            " insert into noetl.event_part (execution_id, last_seq, epoch, tenant, count, shard, ends, events)"
            " select 1, s.last_seq, 1, 1, 1, 1, false, json_build_array(json_build_array("
            "     'x' || s.last_seq, json_build_object('type', 'x', 'at', 1794954110747411))) from s"
        )


def test_every_event_is_exported_and_only_new_ones_follow(log: str, lake: LakeStore) -> None:
    done = export_log(log, lake)
    assert list_exported(lake) == list_recorded(log)
    assert done.events == len(list_recorded(log))
    assert export_log(log, lake) == ExportCounts(0, 0)
    files = [file for manifest in read_manifests(lake) for file in manifest.files]
    assert [file.sha256 for file in files] == [
        hash_stream(lake.open_file(f"events/{file.path}")) for file in files
    ]
    assert not staging_entries(lake)


@pytest.mark.corrupts
def test_what_came_since_is_a_file_of_its_own(log: str, lake: LakeStore) -> None:
    export_log(log, lake)
    add(log)
    assert export_log(log, lake) == ExportCounts(1, 1)
    assert list_exported(lake) == list_recorded(log)


@pytest.mark.parametrize("point", ["export.written", "export.committed"])
def test_a_death_on_the_way_loses_and_doubles_nothing(
    log: str, lake: LakeStore, point: str
) -> None:
    kill_job("export", point, log, lake)
    assert list_exported(lake) == []
    export_log(log, lake)
    assert list_exported(lake) == list_recorded(log)
    assert not staging_entries(lake)


def test_slower_of_two_exports_is_refused_and_leaves_nothing(log: str, lake: LakeStore) -> None:
    def overtake(point: str) -> None:
        if point == "export.written":
            faults.install_fault_hook(None)
            export_log(log, lake)

    faults.install_fault_hook(overtake)
    try:
        with pytest.raises(Conflict, match="another export"):
            export_log(log, lake)
    finally:
        faults.install_fault_hook(None)
    assert list_exported(lake) == list_recorded(log)
    assert export_log(log, lake) == ExportCounts(0, 0)
    assert list_exported(lake) == list_recorded(log)
    assert not staging_entries(lake)


def test_export_to_another_place_reads_compacted_events_from_the_lake(
    log: str, lake: LakeStore, tmp_path: Path
) -> None:
    before = list_recorded(log)
    compact_log(log, lake, time.time_ns() // 1_000)
    elsewhere = empty_lake_like(lake, tmp_path / "elsewhere")
    export_log(log, elsewhere, history=lake)
    assert list_exported(elsewhere) == before
