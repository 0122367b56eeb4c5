"""Schedules and hooks as users have them: processes and a real database; two servers, and each slot runs once."""

from collections import Counter
from pathlib import Path

import httpx

from tests.stack import NoetlCommand, run_stack, write_playbook
from tests.waiting import until

STEP = (
    "  - step: one\n    tool: {kind: noop}\n    set: {ctx.slot: '{{ workload.schedule.slot }}'}\n"
)


def test_a_schedule_without_a_server(noetl: NoetlCommand, tmp_path: Path) -> None:
    assert noetl("schedule", "list").out.startswith("no schedules")
    assert noetl("catalog", "register", write_playbook(tmp_path, "tick", STEP)).code == 0
    added = noetl(
        "schedule",
        "add",
        "nightly",
        "tick",
        "--cron",
        "30 2 * * *",
        "--tz",
        "Europe/Berlin",
        "--set",
        "a.b=1",
    )
    assert (added.code, added.out.startswith("schedule nightly is added; next at ")) == (0, True), (
        added.err
    )
    row = noetl.json("schedule", "show", "nightly")
    assert (row["payload"], row["timezone"], row["catch_up"]) == (
        {"a": {"b": 1}},
        "Europe/Berlin",
        "last",
    )
    shown = noetl("schedule", "show", "nightly").out
    assert "30 2 * * * (Europe/Berlin)" in shown
    assert len(noetl("schedule", "next", "nightly", "-n", "3").out.splitlines()) == 3
    assert noetl("schedule", "pause", "nightly").out == "schedule nightly is paused\n"
    assert "paused" in noetl("schedule", "list").out
    assert noetl.json("schedule", "resume", "nightly")["paused"] is False
    wrong = noetl("schedule", "add", "nightly", "tick", "--cron", "often")
    assert (wrong.code, "has 1 fields" in wrong.err) == (2, True)
    wrong = noetl("schedule", "add", "x", "tick", "--every", "1h", "--overlap", "never")
    assert (wrong.code, "hint: allow, skip, queue" in wrong.err) == (2, True)
    assert noetl("schedule", "delete", "nightly").code == 0
    assert noetl("schedule", "delete", "nightly").code == 2


def test_two_servers_run_each_slot_once(noetl: NoetlCommand, tmp_path: Path) -> None:
    noetl("catalog", "register", write_playbook(tmp_path, "tick", STEP))
    with run_stack(noetl, workers=1) as stack, run_stack(noetl):
        added = stack.client(
            "schedule", "add", "often", "tick", "--every", "1s", "--catch-up", "all"
        )
        assert added.code == 0
        headers = noetl.token_header
        with httpx.Client(base_url=stack.url, trust_env=False, headers=headers) as http:

            def list_completed() -> list[str]:
                rows = http.get(
                    "/api/executions", params={"status": "completed", "path": "tick"}
                ).json()
                return [row["execution_id"] for row in rows["executions"]]

            until(lambda: len(list_completed()) >= 4)
            assert stack.client("schedule", "delete", "often").code == 0
            slots = Counter(
                http.get(f"/api/vars/{each}/slot").json()["value"] for each in list_completed()
            )
    assert set(slots.values()) == {1}


def test_a_hook_is_called(noetl: NoetlCommand, tmp_path: Path) -> None:
    noetl(
        "catalog",
        "register",
        write_playbook(tmp_path, "take", "  - {step: one, tool: {kind: noop}}\n"),
    )
    added = noetl("hook", "add", "orders", "take", "--into", "order")
    assert (added.code, added.out) == (0, "hook orders is added: POST /api/hooks/orders\n"), (
        added.err
    )
    assert "orders" in noetl("hook", "list").out
    with run_stack(noetl) as stack:
        headers = noetl.token_header
        with httpx.Client(base_url=stack.url, trust_env=False, headers=headers) as http:
            calls = [
                http.post("/api/hooks/orders", json={"id": 7}, headers={"Idempotency-Key": "k"})
                for _ in range(2)
            ]
        assert [call.status_code for call in calls] == [202, 202]
        assert len({call.json()["execution_id"] for call in calls}) == 1
        assert stack.client.json("hook", "delete", "orders") == {"name": "orders"}
