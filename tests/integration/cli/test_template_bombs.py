"""Templates that froze one worker after the other, on a real server and worker."""

from pathlib import Path

import httpx

from tests.stack import NoetlCommand, Stack, run_stack, write_playbook
from tests.waiting import until

BOMB = "{{ ('\\u4e00' * 2000000) | trim('\\u4e01' * 2000000 ~ '\\u4e00') | length }}"
SLOW = "{% for i in range(1000) %}{% for j in range(180) %}{{ i * j }}{% endfor %}{% endfor %}"
FROZEN = f"""\
  - step: frozen
    tool: {{kind: python, timeout: 5s, input: {{n: "{BOMB}"}}, code: 'result = n'}}
"""
# Minutes of rendering, a part of a second for each item.
BUSY = f"""\
  - step: busy
    loop: {{in: "{{{{ range(1000) }}}}", iterator: item}}
    tool: {{kind: python, input: {{n: "{{{{ item }}}}{SLOW}"}}, code: 'result = 1'}}
"""


def start_busy(stack: Stack, noetl: NoetlCommand, folder: Path, name: str) -> str:
    """Start a playbook that renders for minutes. Returns its execution when its loop has begun."""
    stack.client.json("catalog", "register", write_playbook(folder, name, BUSY))
    answer = httpx.post(
        f"{stack.url}/api/execute",
        json={"path": name},
        headers=noetl.token_header,
        trust_env=False,
    )
    execution_id: str = answer.json()["execution_id"]

    def is_claimed() -> bool:
        events = stack.client("exec", "events", execution_id, "--json").out
        return "loop.started" in events

    until(is_claimed)
    return execution_id


def get_status(stack: Stack, execution_id: str) -> str:
    status: str = stack.client.json("exec", "get", execution_id)["status"]
    return status


def test_a_template_bomb_fails_its_step_and_nothing_else(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    with run_stack(noetl, workers=1) as stack:
        said = stack.client("run", write_playbook(tmp_path, "frozen", FROZEN), "--json").json
        assert said["error"]["code"] == "TEMPLATE_LIMIT"
        assert said["error"]["message"].startswith(
            "step frozen, task task_0, input.n: one operation"
        )
        events = stack.client("exec", "events", said["execution_id"], "--json").out
        assert "command.reclaimed" not in events
        assert stack.client.json("run", "examples/hello.yaml")["status"] == "completed"


def test_cancel_and_the_end_of_a_worker_do_not_wait_for_templates(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    with run_stack(noetl.with_env(NOETL_WORKER_DRAIN_SEC="0"), workers=1) as stack:
        execution_id = start_busy(stack, noetl, tmp_path, "cancelled")
        stack.client.json("exec", "cancel", execution_id)
        until(lambda: get_status(stack, execution_id) == "cancelled")

        execution_id = start_busy(stack, noetl, tmp_path, "stopped")
        stack.worker.ask_to_stop()
        stack.worker.wait_for_end()
        stack.client.json("exec", "cancel", execution_id)
