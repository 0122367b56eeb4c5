"""What strangers get from the ports of a Spark server, and what its log tells of data."""

import asyncio
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from noetl.spark.server.process import SparkServerSettings
from noetl.spark.server.server_start import stop_spark_server
from noetl.spark.server.server_state import SparkServerState
from noetl.spark.step.tool import SparkTool, SparkToolSettings
from tests.integration.spark.conftest import Runner
from tests.processes import SHORT_JAVA_OPTIONS, list_children
from tests.waiting import HANG_LIMIT_S

MADE_UP_CLASS = "does.not.Exist"
CANARY = "CANARY-47110815"
LISTENING = "0A"  # the state of a socket in /proc/net/tcp
SILENCE_S = 1.0  # seconds after which a port has no answer
RPC_REQUEST = 3  # the type of a message of Spark's network protocol
RAISED = """
from pyspark.sql import functions as F
@F.udf("string")
def fail(value):
    import sys
    print("printed", value)
    print("printed", value, file=sys.stderr)
    raise ValueError(f"raised {value}")
result = spark.createDataFrame([(secret,)], ["x"]).select(fail("x").alias("y"))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark-security") / "home"


@pytest.fixture(scope="module")
def served(loop: asyncio.Runner, home: Path) -> Iterator[Runner]:
    before = os.umask(0)
    try:
        serving = SparkServerSettings(java_options=SHORT_JAVA_OPTIONS)
        tool = SparkTool(SparkToolSettings(home, serving=serving))
        runner = Runner(tool, loop, home.parent)
        assert runner.rows({"sql": "select 1 as x"}) == [{"x": 1}]
    finally:
        os.umask(before)
    yield runner
    loop.run(tool.close())
    stop_spark_server(SparkServerState.from_home(home))


def test_driver_port_deserialises_nothing_of_a_stranger(served: Runner, home: Path) -> None:
    """The Connect port is among the ports: it refuses the bytes because they are no HTTP/2."""
    listening = _find_listening_ports(_find_jvm(home))
    assert len(listening) >= 3  # Connect, the driver's RPC, its blocks
    assert {address for address, _ in listening} == {"127.0.0.1"}
    answers = b"".join(_send_serialised_object(port) for _, port in listening)
    assert b"ClassNotFoundException" not in answers, answers
    assert MADE_UP_CLASS.encode() not in answers, answers
    assert b"Expected SaslMessage" in answers
    assert served.rows({"sql": "select sum(id) as x from range(0, 100, 1, 4)"}) == [{"x": 4950}]


def test_log_holds_no_values_of_steps(served: Runner, home: Path) -> None:
    secret = {"secret": CANARY}
    cast = {"sql": "select cast({{ secret }} as int) as x"}
    assert CANARY in str(served.failure(cast, secret))
    assert CANARY in str(served.failure({"code": RAISED, "input": secret}, input=secret))
    divided = (
        "select assert_true({{ secret }} = 'x', concat('no ', {{ secret }})) as x from range(3)"
    )
    assert served.failure({"sql": divided}, secret)
    assert served.failure({"sql": f"select * from range(3) where raise_error('{CANARY}') = 1"})
    assert served.failure({"sql": f"select `{CANARY}` from range(3)"})

    log = SparkServerState.from_home(home).log
    text = log.read_text()
    assert CANARY not in text
    assert "Spark Connect server started at" in text
    assert "SparkRuntimeException" in text  # the class of an error, without its text
    assert "PythonException" in text


def test_logs_are_readable_by_their_owner_only(served: Runner, home: Path) -> None:
    """The server of `served` was started with a umask of 0."""
    folder = SparkServerState.from_home(home).folder
    for name in ("server.log", "serve.log", "server.json"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_tokens_are_neither_on_command_lines_nor_in_logs(served: Runner, home: Path) -> None:
    place = SparkServerState.from_home(home)
    record = place.read_server()
    assert record is not None
    assert record.token not in place.log.read_text()
    for pid in (record.pid, _find_jvm(home)):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert record.token.encode() not in command
        assert b"spark.authenticate.secret" not in command


def _find_jvm(home: Path) -> int:
    record = SparkServerState.from_home(home).read_server()
    assert record is not None
    return list_children(record.pid)[0]


def _find_listening_ports(pid: int) -> set[tuple[str, int]]:
    """The addresses at which this process listens."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:  # closed since
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == LISTENING and rest[5] in inodes:
                host, _, port = local.partition(":")
                found.add((_parse_address(host), int(port, 16)))
    return found


def _parse_address(text: str) -> str:
    """An address of /proc/net/tcp or tcp6. One of version 4 that is written as 6 is shown as 4."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    packed = b"".join(words)
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed)
    return socket.inet_ntop(socket.AF_INET6, packed).removeprefix("::ffff:")


def _send_serialised_object(port: int) -> bytes:
    """Send an object of a class that does not exist, as a message to the driver. Returns the answer."""
    host = b"127.0.0.1"
    endpoint = b"endpoint-verifier"
    name = f"{MADE_UP_CLASS}.SecurityProbe".encode()
    receiver = b"\x01" + struct.pack(">H", len(host)) + host + struct.pack(">i", port)
    described = (
        b"\x73\x72" + struct.pack(">H", len(name)) + name + bytes(8) + b"\x02\x00\x00\x78\x70"
    )
    written = b"\xac\xed\x00\x05" + described
    body = b"\x00" + receiver + struct.pack(">H", len(endpoint)) + endpoint + written
    head = struct.pack(">bqi", RPC_REQUEST, 1, len(body))
    frame = struct.pack(">q", 8 + len(head) + len(body)) + head + body
    answer = b""
    with socket.create_connection(("127.0.0.1", port), HANG_LIMIT_S) as connection:
        connection.sendall(frame)
        connection.settimeout(SILENCE_S)
        try:
            while part := connection.recv(65_536):
                answer += part
        except (TimeoutError, ConnectionError):
            pass
    return answer
