"""A tenant as its users have it: tokens, a worker with a home of its own, a quota; on a real database."""

from pathlib import Path
from typing import Any

import httpx

from tests.stack import NoetlCommand, run_stack, write_playbook
from tests.waiting import until

STEPS = "  - step: one\n    tool: {kind: noop, input: {mark: canary}}\n"


def start(client: NoetlCommand, token: str) -> Any:
    answer = httpx.post(
        f"{client.settings['NOETL_SERVER_URL']}/api/execute",
        json={"path": "mine"},
        headers={"Authorization": f"Bearer {token}"},
        trust_env=False,
    )
    return answer.json()


def test_a_tenant_works_beside_the_installation(noetl: NoetlCommand, tmp_path: Path) -> None:
    with run_stack(noetl, workers=1) as stack:
        client = stack.client
        assert client.json("tenant", "create", "acme")["number"] == 2
        made = client.json("token", "create", "ada", "--role", "admin", "--tenant", "acme")
        theirs = client.and_env(NOETL_TOKEN=made["token"])
        box = client.json("token", "create", "box", "--role", "worker", "--tenant", "acme")
        theirs.json("catalog", "register", write_playbook(tmp_path, "mine", STEPS))
        started = start(theirs, made["token"])["execution_id"]
        client.json("tenant", "quota", "set", "acme", "--running", "1")
        assert start(theirs, made["token"])["code"] == "QUOTA_EXCEEDED"
        home = tmp_path / "home"
        worker = client.and_env(NOETL_TOKEN=box["token"], NOETL_HOME=str(home))
        with worker.keep_running("worker", "start"):
            until(lambda: theirs.json("exec", "get", started)["status"] == "completed")
        assert client("exec", "get", started).code != 0
        assert client.json("exec", "list") == []
        shown = client.json("tenant", "show", "acme")
        assert (shown["usage"]["running"], shown["usage"]["bytes"] > 0) == (0, True)
        assert theirs("tenant", "list").code != 0
