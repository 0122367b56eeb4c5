"""`noetl spark` as its users have it."""

from pathlib import Path

from noetl.spark.server.server_state import SparkServerState
from tests.stack import NoetlCommand
from tests.waiting import HANG_LIMIT_S, until


def test_status_and_doctor_know_a_server_of_others(spark_url: str, tmp_path: Path) -> None:
    noetl, named = (
        NoetlCommand(tmp_path).with_env(NOETL_SPARK_PROFILE=spark_url),
        spark_url.partition(";")[0],
    )
    assert {found["check"]: found["status"] for found in noetl.json("spark", "doctor")} == {
        "pyspark": "ok",
        "server": "ok",
    }
    status = noetl("spark", "status")
    assert (status.code, status.out.startswith(f"profile {named}: "), "token" in status.out) == (
        1,
        True,
        False,
    )
    wrong = noetl.with_env(NOETL_SPARK_PROFILE=f"{spark_url}x")("spark", "doctor")
    assert (
        wrong.code,
        "UNAUTHENTICATED" in wrong.out,
        spark_url.rpartition("=")[2] in wrong.out,
    ) == (1, True, False)


def test_a_setting_that_is_wrong_is_said(tmp_path: Path) -> None:
    for command in ("status", "doctor"):
        refused = NoetlCommand(tmp_path).with_env(NOETL_SPARK_IDLE_SEC="abc")("spark", command)
        assert (refused.code, "NOETL_SPARK_IDLE_SEC" in refused.err) == (2, True)


# Like the first server of a machine: after it has stopped to serve, its process goes on for a while.
LINGERING = """
import os
import signal
import socket
import sys
import time
from pathlib import Path
from noetl.spark.server.server_state import ServerRecord, SparkServerState

place = SparkServerState.from_home(Path(sys.argv[1]))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with socket.create_server(("127.0.0.1", 0)) as server:
    place.publish_server(ServerRecord(server.getsockname()[1], "t", os.getpid(), 17))
    signal.sigwait([signal.SIGTERM])
    place.withdraw_server()
time.sleep(1)
Path(sys.argv[2]).touch()
"""


def test_stop_waits_until_the_process_of_the_server_has_ended(tmp_path: Path) -> None:
    noetl, ended = NoetlCommand(tmp_path / "home"), tmp_path / "ended"
    place = SparkServerState.from_home(noetl.home)
    server = noetl.start_python("-c", LINGERING, noetl.home, ended)
    try:
        until(lambda: place.read_server() is not None, HANG_LIMIT_S)
        stopped = noetl("spark", "stop")
        assert (stopped.code, stopped.out) == (0, "stopped\n"), stopped
        assert ended.exists()
        assert noetl("spark", "stop").out == "no Spark server runs\n"
    finally:
        server.kill()
        server.communicate()
