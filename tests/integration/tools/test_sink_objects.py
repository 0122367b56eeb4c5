"""Sinks into an object store: on a real S3 server, once, whole or not at all."""

import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest

from noetl.results.tiers.objects import open_object_store
from noetl.tools.port import Outcome
from noetl.tools.sink.records import SINK_BATCH_ROWS
from tests import s3
from tests.integration.tools import sinks
from tests.unit.tools.calls import failure, value

MANY = 2 * SINK_BATCH_ROWS + 7


class Bucket:
    def __init__(self) -> None:
        server = s3.server()
        self.url = server.place()
        self.auth = {
            "access_key_id": s3.KEY, "secret_access_key": s3.SECRET, "region": s3.REGION, "endpoint": server.endpoint,
        }  # fmt: skip
        self._store = open_object_store(self.url, allow_http=True, **self.auth)

    def sink(self, name: str, data: Any, again: str = "k", **more: Any) -> Outcome:
        auth = more.pop("auth", self.auth)
        return sinks.outcome(
            {"kind": "object", "path": f"{self.url}/{name}", **more}, data, again, auth=auth
        )

    def names(self) -> list[str]:
        return sorted(each["path"] for some in self._store.list() for each in some)

    def read(self, name: str) -> bytes:
        return self._store.get(name).bytes().to_bytes()


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def records(count: int) -> list[dict[str, Any]]:
    return [{"a": number, "b": f"row {number}"} for number in range(count)]


def test_an_object_is_named_by_its_key_and_written_once(bucket: Bucket) -> None:
    made = {"row_count": MANY, "path": f"{bucket.url}/out/orders-k.jsonl"}
    assert value(bucket.sink("out/orders.jsonl", records(MANY))) == made
    assert value(bucket.sink("out/orders.jsonl", records(3))) == {
        **made,
        "row_count": 0,
        "repeated": True,
    }
    value(bucket.sink("out", records(2), "other", format="csv"))
    assert bucket.names() == ["out/orders-k.jsonl", "out/other.csv"]
    assert [json.loads(line) for line in bucket.read("out/orders-k.jsonl").splitlines()] == records(
        MANY
    )


def test_an_object_that_is_replaced_has_the_name_it_was_given(bucket: Bucket) -> None:
    for count in (5, 3):
        value(bucket.sink("all.parquet", records(count), mode="replace"))
    assert pq.read_table(io.BytesIO(bucket.read("all.parquet"))).to_pylist() == records(3)


def test_an_object_that_fails_is_not_there(bucket: Bucket) -> None:
    assert failure(bucket.sink("x.parquet", [{"a": 1}, {"a": "x"}])).code == "SINK_VALUE"
    assert bucket.names() == []


def test_what_is_wrong_with_an_object_target_is_named(bucket: Bucket) -> None:
    refused = failure(
        bucket.sink("x.csv", records(1), auth={**bucket.auth, "secret_access_key": "another"})
    )
    assert (refused.code, refused.kind, refused.retryable) == ("SINK_OBJECT", "auth", False)
    assert "another" not in refused.message
    assert failure(bucket.sink("x.csv", records(1), auth=None)).code == "SINK_TARGET"
    assert failure(bucket.sink("x.csv", records(1), mode="upsert", key=["a"])).code == "SINK_TARGET"
    nowhere = sinks.outcome(
        {"kind": "object", "path": "file:///tmp/x.csv"}, records(1), auth=bucket.auth
    )
    assert failure(nowhere).code == "SINK_TARGET"
    away = failure(
        bucket.sink("x.csv", records(1), auth={**bucket.auth, "endpoint": "http://127.0.0.1:9"})
    )
    assert (away.code, away.retryable) == ("SINK_OBJECT", True)
