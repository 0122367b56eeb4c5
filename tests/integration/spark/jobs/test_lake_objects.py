"""A lake in an object store: a job that dies after any request, and a store that cannot be used."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from noetl.model.errors import InvalidInput, StoreUnavailable
from noetl.results.tiers.objects import open_object_store
from noetl.spark.jobs import lake_objects
from noetl.spark.jobs.compact import compact_log
from noetl.spark.jobs.export import export_log
from noetl.spark.jobs.lake_objects import ObjectLake
from tests import s3
from tests.integration.spark.jobs.old_log import Died, staging_entries
from tests.integration.spark.jobs.test_compact import all_events, new_log, now, one_file
from tests.integration.spark.jobs.test_export import list_exported, list_recorded


class DyingStore:
    """Kills its caller right after a request that the store has carried out."""

    def __init__(self, store: Any, dies_after: int | None = None) -> None:
        self._store = store
        self._dies_after = dies_after
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def request(*args: Any, **more: Any) -> Any:
            answer = method(*args, **more)
            self.requests += 1
            if self.requests == self._dies_after:
                raise Died
            return answer

        return request


def new_place() -> str:
    return f"{s3.server().place()}/lake"


def lake_at(place: str) -> ObjectLake:
    return ObjectLake(lambda: s3.server().connect_bucket(place), place)


def dying_lake(place: str, dies_after: int | None = None) -> tuple[ObjectLake, DyingStore]:
    store: Any = DyingStore(s3.server().connect_bucket(place), dies_after)
    return ObjectLake(lambda: store, place), store


@pytest.mark.long
def test_export_that_dies_after_any_request_loses_and_doubles_nothing(log: str) -> None:
    events = list_recorded(log)
    whole, counted = dying_lake(new_place())
    export_log(log, whole)
    assert counted.requests > 20
    for number in range(1, counted.requests + 1):
        place = new_place()
        with pytest.raises(Died):
            export_log(log, dying_lake(place, number)[0])
        visible = list_exported(lake_at(place))
        assert len(visible) == len(set(visible)), number
        export_log(log, lake_at(place))
        assert list_exported(lake_at(place)) == events, number
        assert not staging_entries(lake_at(place)), number


@pytest.mark.long
def test_compaction_that_dies_after_any_request_loses_and_doubles_nothing() -> None:
    whole, counted = dying_lake(new_place())
    with new_log() as log:
        compact_log(log, whole, now())
    assert counted.requests > 5
    for number in range(1, counted.requests + 1):
        place = new_place()
        with new_log() as log:
            before, events = all_events(log, lake_at(place)), len(list_recorded(log))
            with pytest.raises(Died):
                compact_log(log, dying_lake(place, number)[0], now())
            assert all_events(log, lake_at(place)) == before, number
            compact_log(log, lake_at(place), now())
            assert all_events(log, lake_at(place)) == before, number
            one_file(log, lake_at(place), events)


def test_file_larger_than_one_copy_request_is_published(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_objects, "MAX_COPY_BYTES", 100)
    lake = lake_at(new_place())
    export_log(log, lake)
    assert list_exported(lake) == list_recorded(log)


def test_manifest_whose_answer_was_lost_counts_as_written() -> None:
    lake = lake_at(new_place())
    assert lake.put_if_absent("events/_manifests/1.json", b"ours")
    assert lake.put_if_absent("events/_manifests/1.json", b"ours")
    assert not lake.put_if_absent("events/_manifests/1.json", b"theirs")
    assert lake.read_file("events/_manifests/1.json") == b"ours"


def test_open_file_reads_at_any_position(tmp_path: Path) -> None:
    data = bytes(range(256)) * 20_000
    (tmp_path / "file").write_bytes(data)
    lake = lake_at(new_place())
    lake.upload(tmp_path / "file", "cold/a.parquet")
    with lake.open_file("cold/a.parquet") as file:
        assert file.read(10) == data[:10]
        assert file.seek(-5, 2) == len(data) - 5
        assert file.read(100) == data[-5:]
        file.seek(3)
        assert file.read() == data[3:]


def test_store_that_cannot_be_used_is_named() -> None:
    nowhere = ObjectLake(
        lambda: open_object_store(
            "s3://bucket/lake", allow_http=True, **keys("http://127.0.0.1:9", s3.SECRET)
        ),
        "s3://bucket/lake",
    )
    with pytest.raises(StoreUnavailable, match="s3://bucket/lake/cold/"):
        asyncio.run(nowhere.find_unreadable(["cold/a.parquet"]))
    place = new_place()
    wrong_key = ObjectLake(
        lambda: open_object_store(place, allow_http=True, **keys(s3.server().endpoint, "wrong")),
        place,
    )
    with pytest.raises(InvalidInput, match=f"{place} refuses"):
        wrong_key.put_if_absent("_owner", b"me")


def keys(endpoint: str, secret: str) -> dict[str, str]:
    return {
        "endpoint": endpoint,
        "access_key_id": s3.KEY,
        "secret_access_key": secret,
        "region": s3.REGION,
    }
