"""A server and a worker as processes, and commands that talk to them."""

import signal
from pathlib import Path

import httpx

from tests.integration.cli.conftest import Noetl, playbook, ready
from tests.waiting import until

WAITS = "  - step: ask\n    tool: {kind: wait, signal: go}\n    next: done\n"
DONE = "  - step: done\n    tool: {kind: python, code: 'result = 5'}\n"
LASTS = """\
  - step: one
    tool:
      kind: python
      code: |
        import os, time
        open({begun!r}, "w").close()
        while not os.path.exists({go!r}):
            time.sleep(0.01)
"""


def test_a_server_and_a_worker_run_what_commands_ask_for(
    noetl: Noetl, tmp_path: Path, free_port: int
) -> None:
    url = f"http://127.0.0.1:{free_port}"
    client = noetl.with_env(NOETL_SERVER_URL=url)
    with noetl.running("server", "start", "--port", free_port):
        ready(url)
        taken = noetl("server", "start", "--port", free_port)
        assert taken.code == 2
        assert "Address already in use" in taken.err
        with client.running("worker", "start", "--slots", 2):
            said = client.json("run", "examples/hello.yaml")
            assert (said["status"], said["result"]) == ("completed", "HELLO, WORLD!")

            asking = client.start(
                "run", playbook(tmp_path, "asks", WAITS + DONE), "--json", "--watch"
            )
            while not (rows := client.json("exec", "list", "--path", "asks")):
                pass
            execution_id = rows[0]["execution_id"]
            client.json("exec", "pause", execution_id)
            client.json("exec", "signal", execution_id, "go")
            assert client.json("exec", "get", "@latest")["status"] == "paused"
            client.json("exec", "resume", execution_id)
            assert client.wait(asking).json["result"] == 5
            assert client.json("result", "show", execution_id, "done") == 5
            assert {found["status"] for found in client.json("doctor")} == {"ok"}
    assert (
        noetl.json("exec", "get", "@latest")["status"] == "completed"
    )  # the same home, without the server


def test_dev_registers_playbooks_as_they_are_saved(
    noetl: Noetl, tmp_path: Path, free_port: int
) -> None:
    url = f"http://127.0.0.1:{free_port}"
    playbook(tmp_path, "saved", DONE)
    with noetl.running("dev", tmp_path, "--port", free_port) as process:
        assert process.stdout is not None
        told = iter(process.stdout)
        assert url in next(told)
        assert "saved version 1" in next(told)
        playbook(tmp_path, "saved", DONE.replace("5", "6"))
        assert "saved version 2" in next(told)
        assert noetl.with_env(NOETL_SERVER_URL=url).json("run", "saved")["result"] == 6


def test_a_worker_of_its_own_finds_the_database_for_tables(
    noetl: Noetl, tmp_path: Path, free_port: int
) -> None:
    query = "  - step: one\n    tool: {kind: postgres, auth: local, query: SELECT 40 + 2 AS n}\n"
    there = noetl.with_env(NOETL_SERVER_URL=f"http://127.0.0.1:{free_port}")
    with noetl.running("server", "start", "--port", free_port):
        ready(f"http://127.0.0.1:{free_port}")
        with there.running("worker", "start"):
            said = there.json("run", playbook(tmp_path, "asks", query))
    assert said["result"]["rows"] == [{"n": 42}]


def test_a_worker_told_to_stop_does_not_wait_for_a_server_that_is_gone(
    noetl: Noetl, tmp_path: Path, free_port: int
) -> None:
    url = f"http://127.0.0.1:{free_port}"
    patient = noetl.with_env(NOETL_SHARD_LEASE_SEC="60")
    there = noetl.with_env(
        NOETL_SERVER_URL=url,
        NOETL_SHARD_LEASE_SEC="60",
        NOETL_WORKER_DRAIN_SEC="3600",
        NOETL_WORKER_ID="stays",
    )
    begun, go = tmp_path / "begun", tmp_path / "go"
    file = playbook(tmp_path, "lasts", LASTS.format(begun=str(begun), go=str(go)))
    with patient.running("server", "start", "--port", free_port):
        ready(url)
        worker = there.start("worker", "start")
        there.json("catalog", "register", file)
        execution_id = httpx.post(
            f"{url}/api/execute", json={"path": "lasts"}, trust_env=False
        ).json()["execution_id"]
        until(begun.exists)
    worker.send_signal(signal.SIGTERM)
    go.touch()
    try:
        assert there.wait(worker).code == 0
    finally:
        worker.kill()
    spool = noetl.home / "spool" / "stays"
    assert len(list(spool.glob("*.report"))) == 1
    with patient.running("server", "start", "--port", free_port):
        ready(url)
        with there.running("worker", "start"):
            until(lambda: there.json("exec", "get", execution_id)["status"] == "completed")
    assert list(spool.glob("*.report")) == []
