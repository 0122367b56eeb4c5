"""The messages between the worker, the client processes and Spark's tasks."""

import math

from noetl.model.errors import Failure
from noetl.model.events import Items
from noetl.spark.messages import (
    CheckSpec,
    ClientLine,
    ConnectServer,
    FileFacts,
    FrameManifest,
    InputSpec,
    OutputSpec,
    ReleaseRequest,
    RunRequest,
    SparkAnswer,
    SparkStatement,
    SparkWork,
    decode_message,
    decode_request,
    encode_message,
)

SERVER = ConnectServer("sc://localhost:1", ours=True)


def test_requests_come_back_as_they_were_sent() -> None:
    work = SparkWork(
        brings=False,
        conf={"spark.sql.shuffle.partitions": "4"},
        inputs={"a": InputSpec(format="parquet", paths=["/x"]), "b": InputSpec(table="t")},
        sql=[SparkStatement("select :v", {"v": 2**70})],
        expect=[CheckSpec("positive", "n > 0", {}, "drop")],
        output=OutputSpec(path="/lake", format="csv", options={"header": True}),
        staged=FrameManifest(["n"], {}, [FileFacts("/f", 10, 2, "ab")]),
    )
    run = RunRequest(
        server=SERVER,
        work=work,
        session="s",
        base=None,
        key="k",
        folder="/folder",
        copy_record="/record",
        tags=["1.step"],
        max_value_bytes=100,
    )
    for request in (run, ReleaseRequest(SERVER, ["a", "b"])):
        assert decode_request(encode_message(request)) == request


def test_an_answer_keeps_values_that_only_python_writes_as_json() -> None:
    value = {"large": 2**80, "rows": [1.5, None, "ä"]}
    answer = SparkAnswer(
        value=value,
        frames={"": FrameManifest(["n"], {"positive": 1}, [], shards=[Items(ok=3)])},
        error=Failure(code="X", message="no", detail={"line": 3}),
    )
    assert decode_message(encode_message(ClientLine(answer=answer)), ClientLine).answer == answer
    nan = decode_message(encode_message(ClientLine(answer=SparkAnswer(value=math.nan))), ClientLine)
    assert nan.answer is not None
    assert math.isnan(nan.answer.value)


def test_a_manifest_of_an_earlier_release_is_read() -> None:
    recorded = (
        '{"columns": ["n"], "path": "/lake", "expect": {}, "rows": 2,'
        ' "files": [{"path": "/lake/a.parquet", "bytes": 10}]}'
    )
    manifest = FrameManifest(["n"], {}, [FileFacts("/lake/a.parquet", 10)], path="/lake", rows=2)
    assert decode_message(recorded, FrameManifest) == manifest
