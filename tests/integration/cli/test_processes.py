"""A server and a worker as processes, and commands that talk to them."""

from pathlib import Path

import httpx

from tests.stack import NoetlCommand, run_stack, write_playbook
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
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    with run_stack(noetl, slots=2) as stack:
        client = stack.client
        taken = noetl("server", "start", "--port", stack.port)
        assert taken.code == 2
        assert "Address already in use" in taken.err
        with stack.run_worker():
            said = client.json("run", "examples/hello.yaml")
            assert (said["status"], said["result"]) == ("completed", "HELLO, WORLD!")

            asking = client.start(
                "run", write_playbook(tmp_path, "asks", WAITS + DONE), "--json", "--watch"
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
    noetl: NoetlCommand, tmp_path: Path, free_port: int
) -> None:
    url = f"http://127.0.0.1:{free_port}"
    write_playbook(tmp_path, "saved", DONE)
    with noetl.keep_running("dev", tmp_path, "--port", free_port) as process:
        assert process.stdout is not None
        told = iter(process.stdout)
        assert url in next(told)
        assert "saved version 1" in next(told)
        write_playbook(tmp_path, "saved", DONE.replace("5", "6"))
        assert "saved version 2" in next(told)
        assert noetl.with_env(NOETL_SERVER_URL=url).json("run", "saved")["result"] == 6


def test_a_worker_of_its_own_finds_the_database_for_tables(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    query = "  - step: one\n    tool: {kind: postgres, auth: local, query: SELECT 40 + 2 AS n}\n"
    with run_stack(noetl, workers=1) as stack:
        said = stack.client.json("run", write_playbook(tmp_path, "asks", query))
    assert said["result"]["rows"] == [{"n": 42}]


def test_a_worker_told_to_stop_does_not_wait_for_a_server_that_is_gone(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    patient = noetl.with_env(NOETL_SHARD_LEASE_SEC="60", NOETL_WORKER_DRAIN_SEC="3600")
    begun, go = tmp_path / "begun", tmp_path / "go"
    file = write_playbook(tmp_path, "lasts", LASTS.format(begun=str(begun), go=str(go)))
    with run_stack(patient, workers=1) as stack:
        stack.client.json("catalog", "register", file)
        execution_id = httpx.post(
            f"{stack.url}/api/execute",
            json={"path": "lasts"},
            headers=noetl.token_header,
            trust_env=False,
        ).json()["execution_id"]
        until(begun.exists)
        stack.server.stop()
        stack.worker.ask_to_stop()
        go.touch()
        stack.worker.wait_for_end()
        spool = noetl.home / "spool" / "worker"
        assert len(list(spool.glob("*.report"))) == 1
        stack.restart_dead()
        stack.wait_until_ready()
        until(lambda: stack.client.json("exec", "get", execution_id)["status"] == "completed")
    assert list(spool.glob("*.report")) == []
