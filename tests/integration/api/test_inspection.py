"""Seeing inside an execution over HTTP: its page at any event, its timeline, its events and its reasons."""

from typing import Any

from tests.integration.api.api_server import (
    NOOP,
    WAITS,
    ApiServer,
    read_messages,
    run_api_server,
    run_worker,
)
from tests.waiting import wait_until

FAILS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: fails, path: tests/fails}
workload: {n: 3, password: secret}
workflow:
  - step: plan
    tool: {kind: noop}
    set: {ctx.limit: 2}
    next:
      spec: {mode: exclusive}
      arcs:
        - {step: never, when: "{{ ctx.limit > 5 }}"}
        - {step: score}
  - step: never
    tool: {kind: noop}
  - step: score
    loop: {in: [1, 2, 3], iterator: item, spec: {mode: parallel}}
    tool:
      kind: python
      input: {item: "{{ item }}"}
      code: |
        if item > 1:
            raise ValueError(f"cannot score {item}")
"""


async def run_to_end(here: ApiServer, text: str, path: str) -> str:
    await here.register(text)
    execution_id = await here.start(path)
    await here.wait_for_end(execution_id)
    return execution_id


async def test_a_page_shows_an_execution_that_has_ended() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await run_to_end(here, NOOP, "tests/simple")
        page = await here.get(f"/api/executions/{execution_id}/view")
        assert (page["status"], page["is_live"], page["path"]) == (
            "completed",
            True,
            "tests/simple",
        )
        assert page["number"] == page["events"] > 0
        assert page["seq"] == page["last_seq"]
        steps = {name: (step["status"], step["runs"]) for name, step in page["steps"].items()}
        assert steps == {"one": ("completed", 1), "two": ("completed", 1)}
        assert page["arcs"]["one:0"]["taken"] == 1
        assert (page["ctx"], page["workload_keys"]) == ({"n": 1}, ["n"])
        assert (page["live"], page["failures"], page["failure"]) == (
            [],
            {"total": 0, "kinds": []},
            None,
        )
        assert page["result_step"] == "two"
        assert page["left_out"] == []


async def test_a_page_shows_every_event_of_the_past() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await run_to_end(here, NOOP, "tests/simple")
        events = (await here.get(f"/api/executions/{execution_id}/events"))["events"]
        statuses: list[str] = []
        for number, event in enumerate(events, 1):
            page = await here.get(f"/api/executions/{execution_id}/view", at=event["seq"])
            assert (page["seq"], page["number"], page["at"]) == (
                event["seq"],
                number,
                event["at"],
            )
            assert (page["events"], page["is_live"]) == (len(events), False)
            statuses.append(page["status"])
        assert statuses[0] == "pending"
        assert statuses[-1] == "completed"
        beyond = await here.get(f"/api/executions/{execution_id}/view", at=1 << 40)
        assert beyond["seq"] == events[-1]["seq"]
        moment = events[3]["at"]
        then = await here.get(f"/api/executions/{execution_id}/view", moment=moment)
        last = [event["seq"] for event in events if event["at"] <= moment][-1]
        assert then["seq"] == last
        for number in (1, 4, len(events)):
            page = await here.get(f"/api/executions/{execution_id}/view", number=number)
            assert (page["seq"], page["number"]) == (events[number - 1]["seq"], number)
            assert page["is_live"] is False
        url = f"/api/executions/{execution_id}/view"
        for params in ({"number": len(events) + 1}, {"number": 0}, {"number": 1, "at": 5}):
            assert (await here.http.get(url, params=params)).status_code == 422, params


async def test_a_page_is_refused_before_the_first_event() -> None:
    async with run_api_server() as here, run_worker(here):
        await run_to_end(here, NOOP, "tests/simple")
        execution_id = await here.start()
        row = await here.wait_for_end(execution_id)
        events = (await here.get(f"/api/executions/{execution_id}/events"))["events"]
        assert row["last_seq"] == events[-1]["seq"]
        early = events[0]["seq"] - 1
        url = f"/api/executions/{execution_id}/view"
        if early:
            assert (await here.http.get(url, params={"at": early})).status_code == 422
        assert (await here.http.get(url, params={"at": 0})).status_code == 422
        both = {"at": 5, "moment": "1h"}
        assert (await here.http.get(url, params=both)).status_code == 422
        assert (await here.http.get("/api/executions/77/view")).status_code == 404


async def test_a_page_opens_on_the_failure() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await run_to_end(here, FAILS, "tests/fails")
        page = await here.get(f"/api/executions/{execution_id}/view")
        failure = page["failure"]
        assert page["status"] == "failed"
        assert (failure["step"], failure["code"], failure["line"]) == ("score", "PYTHON_ERROR", 24)
        assert failure["item"] in (1, 2)
        events = {
            event["seq"]: event
            for event in (await here.get(f"/api/executions/{execution_id}/events"))["events"]
        }
        assert events[failure["seq"]]["type"] in ("command.completed", "command.progress")
        (kind,) = [each for each in page["failures"]["kinds"] if each["step"] == "score"]
        assert "cannot score …" in kind["shape"]
        assert page["steps"]["score"]["status"] == "failed"
        assert page["steps"]["score"]["loop"]["failed"] >= 1
        arc = page["arcs"]["plan:0"]
        assert (arc["false"], arc["taken"]) == (1, 0)
        assert arc["last"]["saw"] == {"ctx.limit": 2}
        assert "never" not in page["steps"]
        assert "password" not in page["workload_keys"]


async def test_a_waiting_step_says_what_it_waits_for() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(WAITS)
        execution_id = await here.start("tests/waits")
        await here.wait_for_event(execution_id, "command.parked")
        page = await here.get(f"/api/executions/{execution_id}/view")
        waits = page["steps"]["one"]["waits"]
        assert page["steps"]["one"]["status"] == "waiting"
        assert (waits["on"], waits["name"]) == ("signal", "go")
        assert waits["since"] is not None
        assert (page["live_total"], page["live"][0]["waits"]["on"]) == (1, "signal")


async def test_a_command_without_a_worker_waits_for_one() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        execution_id = await here.start()
        await here.wait_for_event(execution_id, "command.issued")
        page = await here.get(f"/api/executions/{execution_id}/view")
        waits = page["live"][0]["waits"]
        assert (waits["on"], waits["pool"]) == ("worker", "cpu")


async def test_a_timeline_has_spans_and_buckets() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await run_to_end(here, FAILS, "tests/fails")
        timeline = await here.get(f"/api/executions/{execution_id}/timeline")
        assert timeline["exact"]
        assert timeline["next_zoom"] is None
        assert {span["step"] for span in timeline["spans"]} == {"plan", "score"}
        assert all(span["ended"] for span in timeline["spans"])
        band = timeline["steps"]["score"]
        assert sum(band["ended"]) == len([s for s in timeline["spans"] if s["step"] == "score"])
        assert sum(band["items"]) == sum(
            span["ok"] + span["failed"] + span["skipped"] for span in timeline["spans"]
        )
        assert "failed" in {mark["kind"] for mark in timeline["marks"]}
        of_one = await here.get(f"/api/executions/{execution_id}/timeline", step="plan", buckets=1)
        assert list(of_one["steps"]) == ["plan"]
        assert all(len(of_one["steps"]["plan"][name]) == 1 for name in ("started", "busy_us"))
        empty = await here.get(
            f"/api/executions/{execution_id}/timeline", **{"from": "1h", "to": "30m"}
        )
        assert (empty["exact"], empty["spans"], empty["steps"]) == (True, [], {})
        turned: dict[str, Any] = {"from": "1m", "to": "1h"}
        url = f"/api/executions/{execution_id}/timeline"
        assert (await here.http.get(url, params=turned)).status_code == 422


WAITS_TWICE = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits twice, path: tests/waits_twice}
workflow:
  - step: one
    tool: {kind: wait, signal: go}
    next: two
  - step: two
    tool: {kind: wait, signal: go on}
"""


async def start_waiting_twice(here: ApiServer) -> str:
    await here.register(WAITS_TWICE)
    execution_id = await here.start("tests/waits_twice")
    await here.wait_for_event(execution_id, "command.parked")
    return execution_id


async def send_signal(here: ApiServer, execution_id: str, name: str) -> None:
    answer = await here.http.post(f"/api/executions/{execution_id}/signals/{name}")
    assert answer.status_code == 202


def apply_change(page: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The page as a reader keeps it."""
    merged = {**page, **{name: value for name, value in change.items() if name != "bands"}}
    merged["last_seq"] = change["seq"]
    merged["at"] = change["updated_at"]
    for name in ("steps", "arcs"):
        merged[name] = {**page[name], **change[name]}
    return merged


async def test_a_watched_page_follows_the_execution_to_its_end() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await start_waiting_twice(here)
        kinds: list[str] = []
        page: dict[str, Any] = {}
        signals = ["go", "go on"]
        url = f"/api/executions/{execution_id}/watch"
        async with here.http.stream("GET", url) as stream:
            async for kind, seq, data in read_messages(stream):
                kinds.append(kind)
                match kind:
                    case "view":
                        page = data
                        assert seq == data["seq"]
                    case "delta":
                        page = apply_change(page, data)
                        assert seq == data["seq"]
                    case "end":
                        break
                waits = [step["waits"]["name"] for step in page["steps"].values() if step["waits"]]
                if signals and waits == signals[:1]:
                    await send_signal(here, execution_id, signals.pop(0))
        assert kinds[0] == "view"
        assert kinds[-2:] == ["view", "end"]
        assert "delta" in kinds
        newest = await here.get(f"/api/executions/{execution_id}/view")
        shown = ("status", "steps", "arcs", "seq", "number", "events", "live", "ended_at")
        assert {name: page[name] for name in shown} == {name: newest[name] for name in shown}
        headers = {"Last-Event-ID": str(newest["seq"])}
        assert (await here.http.get(url, headers=headers)).status_code == 204


async def test_a_watcher_that_has_seen_everything_gets_only_changes() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await start_waiting_twice(here)
        seen = (await here.get(f"/api/executions/{execution_id}/view"))["seq"]
        url = f"/api/executions/{execution_id}/watch"
        async with here.http.stream("GET", url, params={"after": seen}) as stream:
            await send_signal(here, execution_id, "go")
            async for kind, _, _ in read_messages(stream):
                assert kind == "delta"
                break


# ---- events ---------------------------------------------------------------------------------------


async def test_events_are_paged_in_both_directions() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await run_to_end(here, NOOP, "tests/simple")
        url = f"/api/executions/{execution_id}/events"
        events = (await here.get(url))["events"]
        assert [event["number"] for event in events] == list(range(1, len(events) + 1))
        backwards: list[dict[str, Any]] = []
        before: int | None = events[-1]["seq"] + 1
        while before is not None:
            page = await here.get(url, before=before, limit=3)
            assert len(page["events"]) <= 3
            backwards = page["events"] + backwards
            before = page["next"]
        numbers = [event["number"] for event in backwards]
        assert numbers == list(range(1, len(events) + 1))
        assert [event["seq"] for event in backwards] == [event["seq"] for event in events]
        both = {"before": 5, "after": 2}
        assert (await here.http.get(url, params=both)).status_code == 422


async def test_a_page_of_events_begins_at_a_number() -> None:
    async with run_api_server() as here, run_worker(here):
        await run_to_end(here, NOOP, "tests/simple")
        execution_id = await run_to_end(here, NOOP, "tests/simple")
        url = f"/api/executions/{execution_id}/events"
        events = (await here.get(url))["events"]
        for number, event in enumerate(events, 1):
            page = await here.get(url, number=number, limit=2)
            assert page["events"][0]["seq"] == event["seq"]
            assert [each["number"] for each in page["events"]][1:] in ([number + 1], [])
        refused = await here.http.get(url, params={"number": len(events) + 1})
        assert refused.status_code == 422
        assert f"it has {len(events)}" in refused.json()["detail"]
        assert refused.json()["routes"] == [f"GET {url}"]
        both = {"number": 2, "after": 2}
        assert (await here.http.get(url, params=both)).status_code == 422


async def test_events_say_what_happened_and_what_led_to_them() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await run_to_end(here, NOOP, "tests/simple")
        events = (await here.get(f"/api/executions/{execution_id}/events"))["events"]
        by_seq = {event["seq"]: event for event in events}
        entered = next(
            e for e in events if e["type"] == "step.enter" and e["data"]["step"] == "two"
        )
        (cause,) = entered["causes"]
        assert by_seq[cause]["type"] == "next.evaluated"
        assert entered["seq"] in by_seq[cause]["led_to"]
        assert entered["summary"] == "two entered, run 1, from one"
        assert all(event["summary"] for event in events)
        without = [event["type"] for event in events if not event["causes"]]
        assert without == ["playbook.initialized"]


async def test_events_are_filtered_by_group_step_and_text() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await run_to_end(here, FAILS, "tests/fails")
        url = f"/api/executions/{execution_id}/events"
        events = (await here.get(url))["events"]
        numbers = {event["seq"]: event["number"] for event in events}

        async def list_seqs(**filters: Any) -> list[int]:
            page = await here.get(url, **filters)
            for event in page["events"]:
                assert event["number"] == numbers[event["seq"]]
            return [event["seq"] for event in page["events"]]

        life = await list_seqs(group="life")
        assert (life[0], life[-1]) == (events[0]["seq"], events[-1]["seq"])
        failures = {event["type"] for event in (await here.get(url, group="failures"))["events"]}
        assert "playbook.failed" in failures
        assert "step.enter" not in failures
        loops = [event["type"] for event in (await here.get(url, group="loops"))["events"]]
        assert loops == ["loop.started", "loop.done"]
        of_step = [e["seq"] for e in events if e["data"].get("step") == "plan"]
        assert await list_seqs(step="plan") == of_step
        with_text = await list_seqs(text="CANNOT SCORE")
        assert set(with_text) <= {event["seq"] for event in events}
        assert with_text
        last = await list_seqs(group="loops", before=events[-1]["seq"], limit=1)
        assert last == [e["seq"] for e in events if e["type"] == "loop.done"]
        assert (await here.http.get(url, params={"group": "all"})).status_code == 422


# ---- reasons and runs -----------------------------------------------------------------------------


def find_causes(told: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [cause for cause in told["causes"] if cause["kind"] == kind]


async def test_an_explanation_has_values_lines_and_events() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await run_to_end(here, FAILS, "tests/fails")
        url = f"/api/executions/{execution_id}/explain"
        events = (await here.get(f"/api/executions/{execution_id}/events"))["events"]
        types = {event["seq"]: event["type"] for event in events}
        plan = await here.get(f"{url}/plan")
        never, score = find_causes(plan, "arc")
        assert (never["to"], never["verdict"], never["saw"]) == ("never", "false", {"ctx.limit": 2})
        assert (never["when"], never["line"]) == ("{{ ctx.limit > 5 }}", 13)
        assert types[never["seq"]] == "next.evaluated"
        assert (score["verdict"], score["when"]) == ("taken", None)
        failed = await here.get(f"{url}/score")
        assert failed["verdict"] == "failed"
        (cause,) = find_causes(failed, "failed")
        assert cause["line"] == 17
        (items,) = find_causes(failed, "items")
        assert items["failed"] >= 1
        assert "cannot score …" in items["kinds"][0]["shape"]
        (reached,) = find_causes(failed, "reached")
        assert (reached["from"], types[reached["seq"]]) == (["plan"], "step.enter")
        unreached = await here.get(f"{url}/never")
        assert (unreached["verdict"], find_causes(unreached, "arc")[0]["from"]) == (
            "not reached",
            "plan",
        )
        assert len(failed["because"]) == len(failed["causes"])
        numbers = {event["seq"]: event["number"] for event in events}
        assert failed["numbers"] == [numbers.get(each.get("seq")) for each in failed["causes"]]
        assert numbers[reached["seq"]] in failed["numbers"]


async def test_an_explanation_of_the_past_is_as_of_then() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await run_to_end(here, NOOP, "tests/simple")
        events = (await here.get(f"/api/executions/{execution_id}/events"))["events"]
        entered = next(e["seq"] for e in events if e["type"] == "step.enter")
        url = f"/api/executions/{execution_id}/explain"
        assert (await here.get(f"{url}/one", at=entered))["verdict"] == "running"
        assert (await here.get(f"{url}/two", at=entered))["verdict"] == "not reached"
        assert (await here.get(f"{url}/two"))["verdict"] == "ran"
        assert (await here.http.get(f"{url}/three")).status_code == 404


ROUTER_FAILS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: router, path: tests/router}
workload: {name: text}
workflow:
  - step: one
    tool: {kind: noop}
    next:
      arcs:
        - {step: two, when: "{{ workload.name > 1 }}"}
  - step: two
    tool: {kind: noop}
"""


async def test_a_step_with_a_failed_router_has_failed() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await run_to_end(here, ROUTER_FAILS, "tests/router")
        page = await here.get(f"/api/executions/{execution_id}/view")
        assert page["steps"]["one"]["status"] == "failed"
        assert page["steps"]["one"]["error"]["message"]
        told = await here.get(f"/api/executions/{execution_id}/explain/one")
        assert told["verdict"] == "failed"
        (cause,) = find_causes(told, "failed")
        assert "have no order" in cause["message"]
        assert cause["seq"] is not None


TURNS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: turns, path: tests/turns}
workflow:
  - step: count
    tool: {kind: noop}
    set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}
    next:
      arcs:
        - {step: count, when: "{{ ctx.n < 50 }}", args: {turn: "{{ ctx.n }}"}}
"""


async def test_all_runs_of_a_step_are_paged() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await run_to_end(here, TURNS, "tests/turns")
        url = f"/api/executions/{execution_id}/steps/count/runs"
        runs: list[dict[str, Any]] = []
        before: int | None = None
        while True:
            page = await here.get(url, limit=7, **({} if before is None else {"before": before}))
            runs += page["runs"]
            before = page["next"]
            if before is None:
                break
        assert [run["run"] for run in runs] == list(range(50, 0, -1))
        assert {run["status"] for run in runs} == {"completed"}
        assert runs[3]["args"] == {"turn": 46}
        assert all(run["attempts_total"] == 1 for run in runs)
        assert all(run["attempts"][0]["status"] == "completed" for run in runs)
        told = await here.get(f"/api/executions/{execution_id}/explain/count", run=5)
        assert find_causes(told, "reached")[0]["args"] == {"turn": 4}
        assert told["runs"] == 5
        missing = f"/api/executions/{execution_id}/explain/count"
        assert (await here.http.get(missing, params={"run": 51})).status_code == 404
        assert (await here.http.get(url.replace("count", "zzz"))).status_code == 404


ASKS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: asks, path: tests/asks}
workload: {amount: 950, rows: [1, 2, 3]}
workflow:
  - step: ask
    tool:
      kind: wait
      approval: {who: finance, amount: "{{ workload.amount }}", rows: "{{ workload.rows }}", password: p}
"""
QUESTION = {"who": "finance", "amount": 950, "rows": "a list of 3"}


async def test_an_approval_shows_what_is_asked_and_by_whom() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(ASKS)
        execution_id = await here.start("tests/asks")
        await here.wait_for_event(execution_id, "command.parked")
        page = await here.get(f"/api/executions/{execution_id}/view")
        waits = page["steps"]["ask"]["waits"]
        assert (waits["on"], waits["question"]) == ("approval", QUESTION)
        assert page["live"][0]["waits"]["question"] == QUESTION
        told = await here.get(f"/api/executions/{execution_id}/explain/ask")
        (cause,) = find_causes(told, "waits")
        assert (cause["question"], cause["by"]) == (QUESTION, page["by"])
        assert "who: finance, amount: 950, rows: a list of 3" in told["because"][0]

        async def is_listed() -> bool:
            rows = (await here.get("/api/executions", waiting=True))["executions"]
            return [row["execution_id"] for row in rows] == [execution_id]

        await wait_until(is_listed)
        (row,) = (await here.get("/api/executions", waiting=True))["executions"]
        assert (row["waits_for"]["question"], row["waits_for"]["by"]) == (QUESTION, page["by"])
        events = (await here.get(f"/api/executions/{execution_id}/events"))["events"]
        (parked,) = [event for event in events if event["type"] == "command.parked"]
        assert parked["data"]["question"] == QUESTION
        assert "amount: 950" in parked["summary"]


SKIPS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: skips, path: tests/skips}
workflow:
  - {step: one, tool: {kind: noop}, next: two}
  - step: two
    spec:
      policy:
        admit: {rules: [{when: false, then: {allow: false, next: one}}, {else: {allow: false, next: three}}]}
    tool: {kind: noop}
  - {step: three, tool: {kind: noop}}
"""


async def test_a_step_that_was_skipped_says_which_rule_led_on() -> None:
    async with run_api_server() as here, run_worker(here):
        execution_id = await run_to_end(here, SKIPS, "tests/skips")
        page = await here.get(f"/api/executions/{execution_id}/view")
        assert page["steps"]["two"]["status"] == "skipped"
        assert page["arcs"]["two:skip:1"]["taken"] == 1
        assert "two:skip:0" not in page["arcs"]
        graph = await here.get(f"/api/catalog/hashes/{page['playbook']}/graph")
        ways = [(skip["to"], skip["rule"], skip["when"]) for skip in graph["skips"]]
        assert ways == [("one", 0, "false"), ("three", 1, None)]
