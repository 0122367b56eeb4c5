"""The log as a lake: every event once, whatever happens on the way."""

from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.spark.jobs.export import LAYOUT, Exported, export, manifests
from noetl.spark.jobs.lake import sha256_of
from tests.integration.spark.jobs.given import killed


def exported(lake: Path) -> list[int]:
    """As somebody reads it who knows nothing of manifests."""
    files = sorted((lake / "events").glob("day=*/*.parquet"))
    rows = pa.concat_tables([pq.ParquetFile(file).read() for file in files]) if files else LAYOUT.empty_table()
    return sorted(rows.column("EventId").to_pylist())


def recorded(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("select event_id from noetl.event order by event_id")]


def add(dsn: str) -> None:
    """The last execution's last event once more, under another key."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "with s as (update noetl.execution_shard set last_seq = last_seq + 1 where shard_id = 1 returning last_seq)"
            " insert into noetl.event (shard, seq, epoch, tenant, execution_id, event_type, meta, dedup_key, at)"
            " select 1, s.last_seq, 1, 1, 1, 'x', '{}', 'x' || s.last_seq, now() from s"
        )


def test_every_event_is_exported_and_only_new_ones_follow(log: str, lake: Path) -> None:
    done = export(log, lake)
    assert exported(lake) == recorded(log)
    assert done.events == len(recorded(log))
    assert export(log, lake) == Exported(0, 0)
    files = [file for manifest in manifests(lake) for file in manifest.files]
    assert [file.sha256 for file in files] == [sha256_of(lake / "events" / file.path) for file in files]
    assert not list((lake / "_staging").iterdir())


@pytest.mark.corrupts
def test_what_came_since_is_a_file_of_its_own(log: str, lake: Path) -> None:
    export(log, lake)
    add(log)
    assert export(log, lake) == Exported(1, 1)
    assert exported(lake) == recorded(log)


@pytest.mark.parametrize("point", ["export.written", "export.committed"])
def test_a_death_on_the_way_loses_and_doubles_nothing(log: str, lake: Path, point: str) -> None:
    killed("export", point, log, lake)
    assert exported(lake) == []
    export(log, lake)
    assert exported(lake) == recorded(log)
    assert not list((lake / "_staging").iterdir())
