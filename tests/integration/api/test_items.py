"""Items of loops, data of steps and payloads over HTTP."""

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Tenant
from noetl.model.messages import Start
from noetl.model.reference import Reference, parse_uri
from noetl.results.tiers.memory import ResultsMemory
from noetl.server.logs import search
from noetl.server.streams.service import has_ended
from tests.integration.api.api_server import ApiServer, run_api_server, run_worker
from tests.waiting import wait_until

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: items, path: tests/items}
"""
SCORE = (
    HEAD
    + """
workload: {n: 100, bad: [7, 77]}
workflow:
  - step: plan
    tool:
      kind: python
      input: {n: "{{ workload.n }}"}
      code: "result = [{'id': i, 'password': 'p'} for i in range(n)]"
    next: score
  - step: score
    loop:
      in: "{{ plan.rows }}"
      iterator: row
      spec: {mode: parallel, policy: {failure: best_effort}}
    tool:
      kind: python
      input: {row: "{{ row }}", bad: "{{ workload.bad }}"}
      code: |
        if row["id"] < 100:
            print("loading", row["id"])
        if row["id"] == -1 or row["id"] in bad:
            raise ValueError(f"cannot score {row['id']}")
        if row["id"] == 50:
            raise KeyError("other")
        result = {"score": row["id"] * 2, "secret": "s"}
"""
)


class CountingStore(ResultsMemory):
    """Counts which payloads are opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: Counter[str] = Counter()

    async def read_rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        self.opened[reference.uri] += 1
        return await super().read_rows(reference, start, stop)


@asynccontextmanager
async def run_playbook(
    text: str = SCORE, store: ResultsMemory | None = None, **payload: Any
) -> AsyncIterator[tuple[ApiServer, str]]:
    store = store or ResultsMemory()
    async with run_api_server(store=store) as here, run_worker(here, store=store):
        await here.register(text)
        execution_id = await here.start("tests/items", payload=payload)
        await here.wait_for_end(execution_id)
        yield here, f"/api/executions/{execution_id}"


async def read_all(here: ApiServer, place: str, **params: Any) -> tuple[list[Any], int]:
    """The items of all pages, and how many pages there were."""
    items: list[Any] = []
    pages = 0
    while True:
        page = await here.get(place, **params)
        items += page["items"]
        pages += 1
        if page["next"] is None:
            return items, pages
        params["after"] = page["next"]


async def test_failed_items_come_with_their_item_error_and_kind() -> None:
    async with run_playbook() as (here, place):
        page = await here.get(f"{place}/steps/score/items")
        assert (page["step"], page["run"], page["total"]) == ("score", 1, 100)
        assert (page["ok"], page["failed"], page["skipped"]) == (97, 3, 0)
        assert [item["index"] for item in page["items"]] == [7, 50, 77]
        item = page["items"][0]
        assert (item["item"], item["status"], item["value"]) == ({"id": 7}, "error", None)
        assert item["error"]["code"] == "PYTHON_ERROR"
        assert "cannot score 7" in item["error"]["message"]
        assert "ValueError" in item["error"]["trace"]
        assert (item["tries"], item["worker"]) == (1, "w1")
        first, other = page["kinds"]
        assert (first["count"], first["first"], "cannot score …" in first["shape"]) == (2, 7, True)
        assert (other["count"], other["first"]) == (1, 50)
        of_kind = await here.get(f"{place}/steps/score/items", kind=0)
        assert [each["index"] for each in of_kind["items"]] == [7, 77]
        found = await here.get(f"{place}/steps/score/items", q="SCORE 77")
        assert [each["index"] for each in found["items"]] == [77]


async def test_all_items_come_in_pages_and_without_secrets() -> None:
    async with run_playbook() as (here, place):
        items, pages = await read_all(here, f"{place}/steps/score/items", status="all", limit=30)
        assert [item["index"] for item in items] == [*range(100)]
        assert pages >= 4
        assert items[1]["value"] == {"score": 2}
        ok, _ = await read_all(here, f"{place}/steps/score/items", status="ok", limit=200)
        assert len(ok) == 97
        skipped = await here.get(f"{place}/steps/score/items", status="skipped")
        assert skipped["items"] == []


async def test_failed_items_of_a_large_loop_open_only_the_parts_that_have_them() -> None:
    store = CountingStore()
    bad = [7_777, 55_555, 99_999]
    async with run_playbook(store=store, n=100_000, bad=bad) as (here, place):
        manifest = (await here.get(f"{place}/result/score"))["reference"]["ref_id"]
        parts = await here.node.ports.stores.log.read_manifest(DEFAULT_TENANT, manifest)
        with_failures = {part.reference.uri for part in parts if part.failed}
        assert 1 < len(with_failures) <= 4 < len(parts)
        store.opened.clear()
        page = await here.get(f"{place}/steps/score/items")
        assert [item["index"] for item in page["items"]] == [50, *bad]
        assert [item["item"]["id"] for item in page["items"]] == [50, *bad]
        chunks = {uri for uri in store.opened if parse_uri(uri).step == "score"}
        assert chunks == with_failures
        assert max(store.opened[uri] for uri in chunks) == 1
        assert page["next"] is None
        store.opened.clear()
        data = await here.get(f"{place}/steps/score/data", item=55_555)
        assert data["input"]["value"] == {"id": 55_555}
        assert "cannot score 55555" in data["output"]["error"]["message"]
        assert len([uri for uri in store.opened if parse_uri(uri).step == "score"]) == 1


async def test_a_page_opens_a_bounded_number_of_parts() -> None:
    text = SCORE.replace("mode: parallel", "mode: parallel, chunk: 5")
    store = CountingStore()
    async with run_playbook(text, store, bad=[*range(100)]) as (here, place):
        store.opened.clear()
        page = await here.get(f"{place}/steps/score/items", limit=200)
        chunks = [uri for uri in store.opened if parse_uri(uri).step == "score"]
        assert (len(chunks), len(page["items"]), page["looked_at"]) == (8, 40, 40)
        items, pages = await read_all(here, f"{place}/steps/score/items", limit=200)
        assert ([item["index"] for item in items], pages) == ([*range(100)], 3)


async def test_items_of_a_workload_and_of_literals_are_shown() -> None:
    for collection in ("{{ workload.rows }}", "[{a: 1}, {a: 2, password: x}]"):
        quoted = f'"{collection}"' if "{{" in collection else collection
        text = (
            HEAD
            + f"""
workload: {{rows: [{{a: 1}}, {{a: 2, password: x}}]}}
workflow:
  - step: each
    loop: {{in: {quoted}, iterator: row, spec: {{policy: {{failure: best_effort}}}}}}
    tool: {{kind: python, code: "raise ValueError(row)", input: {{row: "{{{{ row.a }}}}"}}}}
"""
        )
        async with run_playbook(text) as (here, place):
            page = await here.get(f"{place}/steps/each/items")
            assert [item["item"] for item in page["items"]] == [{"a": 1}, {"a": 2}], collection


async def test_large_values_are_cut() -> None:
    text = (
        HEAD
        + """
workflow:
  - step: each
    loop: {in: [1], iterator: n}
    tool: {kind: python, code: "result = 'x' * 10000"}
"""
    )
    async with run_playbook(text) as (here, place):
        (item,) = (await here.get(f"{place}/steps/each/items", status="all"))["items"]
        assert item["value"]["cut"] is True
        assert len(item["value"]["text"]) == 4096


async def test_the_lineage_of_an_item_is_that_of_its_part() -> None:
    async with run_playbook() as (here, place):
        whole = await here.get(f"{place}/trace/score")
        one = await here.get(f"{place}/trace/score", item=7)
        assert len(one["roots"]) == 1
        assert len(one["nodes"]) < len(whole["nodes"])
        assert set(one["roots"]) < set(whole["roots"])
        missing = await here.http.get(f"{place}/trace/score", params={"item": 100_000})
        assert (missing.status_code, "has no result" in missing.text) == (404, True)


async def test_a_retried_loop_shows_what_ran_again_and_what_did_not() -> None:
    store = ResultsMemory()
    async with run_playbook(store=store) as (here, place):
        answer = await here.http.post(f"{place}/retry", json={"payload": {"bad": [77]}})
        retried = answer.json()["execution_id"]
        await here.wait_for_end(retried)
        again = f"/api/executions/{retried}"
        page = await here.get(f"{again}/steps/score/items")
        assert [item["index"] for item in page["items"]] == [50, 77]
        assert page["items"][1]["item"] == {"id": 77}
        items, _ = await read_all(here, f"{again}/steps/score/items", status="all", limit=200)
        assert sorted(item["index"] for item in items) == [*range(100)]
        for index, score in ((7, 14), (3, 6)):
            data = await here.get(f"{again}/steps/score/data", item=index)
            assert data["output"]["value"] == {"score": score}
        refused = await here.get(f"{again}/retry")
        counts = {"again": 2, "total": 100, "left": 0, "fails_again": False}
        assert refused["items"] == {"score": counts}
        told = await read_summaries(here, again)
        assert len(told["command.issued"]) == len(told["command.completed"])
        for summaries in told.values():
            assert re.findall(r"score: item (\d+)", " ".join(summaries)) == ["7", "50", "77"]


async def test_earlier_runs_of_a_step_have_their_items_and_data() -> None:
    text = (
        HEAD
        + """
workload: {}
workflow:
  - step: start
    tool: {kind: python, code: "result = {'n': 1}"}
    set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}
    next: each
  - step: each
    loop: {in: "{{ range(ctx.n) }}", iterator: i, spec: {policy: {failure: best_effort}}}
    tool: {kind: python, code: "raise ValueError(i)", input: {i: "{{ i }}"}}
    next: [{step: start, when: "{{ ctx.n < 3 }}"}]
"""
    )
    async with run_playbook(text) as (here, place):
        for run in (1, 2, 3):
            page = await here.get(f"{place}/steps/each/items", run=run)
            assert (page["run"], page["failed"], len(page["items"])) == (run, run, run)
            assert sum(kind["count"] for kind in page["kinds"]) == run
        data = await here.get(f"{place}/steps/start/data", run=2)
        assert (data["run"], data["output"]["value"]) == (2, {"n": 1})
        answer = await here.http.get(f"{place}/steps/each/items", params={"run": 4})
        assert answer.status_code == 404


async def test_the_input_stands_beside_the_output() -> None:
    async with run_playbook() as (here, place):
        data = await here.get(f"{place}/steps/plan/data")
        assert (data["run"], data["item"]) == (1, None)
        assert data["input"] == {"value": {"n": 100}, "reference": None, "cut": False}
        output = data["output"]
        assert (output["status"], output["error"], output["cut"]) == ("ok", None, True)
        assert output["value"][0] == {"id": 0}
        reference = await here.get(f"{place}/references/{output['reference']['ref_id']}", rows=2)
        assert reference["preview"]["rows"] == [{"id": 0}, {"id": 1}]
        item = await here.get(f"{place}/steps/score/data", item=3)
        assert (item["input"]["value"], item["output"]["value"]) == ({"id": 3}, {"score": 6})


async def test_a_failed_step_shows_what_it_was_given() -> None:
    text = (
        HEAD
        + """
workflow:
  - step: bad
    tool: {kind: python, code: "raise ValueError(n)", input: {n: 7, more: [1, 2]}}
"""
    )
    async with run_playbook(text) as (here, place):
        data = await here.get(f"{place}/steps/bad/data")
        assert data["input"]["value"] == {"n": 7, "more": [1, 2]}
        assert (data["output"]["status"], data["output"]["value"]) == ("error", None)
        assert data["output"]["error"]["code"] == "PYTHON_ERROR"


async def test_rows_of_a_payload_are_shown_from_anywhere_and_sorted() -> None:
    async with run_playbook() as (here, place):
        ref_id = (await here.get(f"{place}/steps/plan/data"))["output"]["reference"]["ref_id"]
        window = await here.get(f"{place}/references/{ref_id}", start=95, rows=200)
        assert [row["id"] for row in window["preview"]["rows"]] == [95, 96, 97, 98, 99]
        assert (window["start"], window["reference"]["rows"]) == (95, 100)
        largest = await here.get(f"{place}/references/{ref_id}", sort="-id", rows=2, start=1)
        assert [row["id"] for row in largest["preview"]["rows"]] == [98, 97]
        unknown = await here.get(f"{place}/references/{ref_id}", sort="nothing", rows=1)
        assert unknown["preview"]["rows"] == [{"id": 0}]
        beyond = await here.get(f"{place}/references/{ref_id}", start=1000)
        assert beyond["preview"]["rows"] == []
        loop = (await here.get(f"{place}/result/score"))["reference"]["ref_id"]
        rows = (await here.get(f"{place}/references/{loop}", start=2, rows=1))["preview"]["rows"]
        assert rows == [{"score": 4}]


async def test_what_has_no_items_or_is_not_there_is_named() -> None:
    async with run_playbook() as (here, place):
        for path, status in (
            ("steps/plan/items", 404),
            ("steps/nowhere/items", 404),
            ("steps/nowhere/data", 404),
            ("steps/score/data?item=100", 404),
            ("steps/plan/data?item=0", 404),
            ("steps/score/items?kind=2", 422),
            ("steps/score/items?after=x", 422),
            ("steps/score/items?after=0.0.0.0", 422),
            ("steps/score/items?status=error", 422),
            ("steps/score/items?limit=201", 422),
            ("steps/score/items?q=" + "x" * 201, 422),
            ("steps/score/items?run=0", 422),
            ("references/1", 404),
            ("references/99999999999999999999999999999999", 404),
            ("references/..%2f", 404),
            ("references/xyz", 422),
        ):
            answer = await here.http.get(f"{place}/{path}")
            assert answer.status_code == status, (path, answer.text)
        odd = await here.get(f"{place}/steps/score/items", after="15.999999999.5")
        assert odd["items"] == []
        for unknown in ("0", "x", "99999999999999999999"):
            answer = await here.http.get(f"/api/executions/{unknown}/steps/score/items")
            assert answer.status_code == 404


async def test_items_and_payloads_of_another_tenant_are_not_found() -> None:
    async with run_playbook() as (here, place):
        other = ExecutionId("77")
        entry = await here.node.ports.catalog.register("tests/items", SCORE, Tenant(2))
        start = Start(execution_id=other, path="p", playbook=entry.hash, tenant=Tenant(2))
        await here.node.ports.stores.inbox.start_execution(start, {"n": 3, "bad": [1]})
        log = here.node.ports.stores.log

        async def is_over() -> bool:
            return await has_ended(log, other)

        token = await here.make_foreign_token("worker")
        async with run_worker(here, "w2", token=token):
            await wait_until(is_over)
        states = here.node.server.states
        loaded = await states.read(other)
        assert loaded is not None
        result = loaded.state.steps["plan"].result
        assert result is not None
        assert result.reference is not None
        ref_id = result.reference.ref_id
        for path in ("steps/score/items", "steps/score/data", "references/1", "logs", "retry"):
            answer = await here.http.get(f"/api/executions/{other}/{path}")
            assert answer.status_code == 404, path
        answer = await here.http.get(f"{place}/references/{ref_id}")
        assert answer.status_code == 404


@pytest.mark.parametrize("path", ["steps/score/items", "steps/score/data?item=7", "references/1"])
async def test_a_server_without_a_store_says_so(path: str) -> None:
    store = ResultsMemory()
    async with run_api_server() as here, run_worker(here, store=store):
        await here.register(SCORE)
        execution_id = await here.start("tests/items")
        await here.wait_for_end(execution_id)
        answer = await here.http.get(f"/api/executions/{execution_id}/{path}")
        expected = (404, "NOT_FOUND") if "references" in path else (503, "NO_STORE")
        assert (answer.status_code, answer.json()["code"]) == expected


async def read_lines(here: ApiServer, place: str, **params: Any) -> list[dict[str, Any]]:
    answer = await here.http.get(f"{place}/logs", params=params)
    assert answer.status_code == 200, answer.text
    return [msgspec.json.decode(line) for line in answer.content.splitlines()]


async def test_lines_are_found_by_item_command_and_text() -> None:
    async with run_playbook() as (here, place):
        lines: list[dict[str, Any]] = []
        after = 0
        while page := await read_lines(here, place, after=after):
            lines += page
            after = page[-1]["part"]
        assert len(lines) == 100
        (line,) = await read_lines(here, place, item=7)
        assert (line["line"], line["step"]) == ("loading 7", "score")
        command = line["command_id"]
        of_command = await read_lines(here, place, command_id=command)
        assert {each["command_id"] for each in of_command} == {command}
        nines = [each["line"] for each in lines if "loading 9" in each["line"]]
        last = await read_lines(here, place, text="LOADING 9", tail=2)
        assert [each["line"] for each in last] == nines[-2:]
        assert len([line for line in lines if "loading 9" in line["line"]]) == 11
        assert len(await read_lines(here, place, tail=5)) == 5
        assert await read_lines(here, place, text="nowhere") == []
        assert await read_lines(here, place, step="plan") == []
        for params in ({"tail": 0}, {"tail": 1001}, {"item": -1}, {"command_id": "x%"}):
            answer = await here.http.get(f"{place}/logs", params=params)
            assert answer.status_code == 422, params


async def test_a_search_in_many_parts_says_where_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_SEARCHED_PARTS", 1)
    monkeypatch.setattr(search, "PARTS_PER_PAGE", 1)
    text = SCORE.replace("mode: parallel", "mode: parallel, chunk: 10")
    async with run_playbook(text) as (here, place):
        found: list[str] = []
        after = pages = 0
        while lines := await read_lines(here, place, text="loading 99", after=after):
            after = lines[-1]["part"]
            pages += 1
            found += [line["line"] for line in lines if line["stream"] != "noetl"]
        assert found == ["loading 99"]
        assert pages > 2


# ---- a retry of chosen items ---------------------------------------------------------------------


async def retry_items(here: ApiServer, place: str, *indexes: int, **payload: Any) -> str:
    """Retry these items of `score`, and wait for the end. Returns the place of the new execution."""
    body = {"items": {"score": list(indexes)}, "payload": payload}
    answer = await here.http.post(f"{place}/retry", json=body)
    assert answer.status_code == 202, answer.text
    retried = answer.json()["execution_id"]
    await here.wait_for_end(retried)
    return f"/api/executions/{retried}"


async def read_summaries(here: ApiServer, place: str) -> dict[str, list[str]]:
    """What the events of the commands of `score` say, by type."""
    told: dict[str, list[str]] = {"command.issued": [], "command.completed": []}
    for event in (await here.get(f"{place}/events", step="score"))["events"]:
        told.get(event["type"], []).append(event["summary"])
    return told


async def list_failed(here: ApiServer, place: str) -> list[int]:
    items, _ = await read_all(here, f"{place}/steps/score/items", limit=200)
    return sorted(item["index"] for item in items)


async def test_a_retry_runs_the_chosen_items_and_the_others_stay_failed() -> None:
    async with run_playbook() as (here, place):
        plan = await here.http.post(f"{place}/retry/preview", json={"items": {"score": [77]}})
        left = {"again": 1, "total": 100, "left": 2, "fails_again": False}
        assert plan.json()["items"] == {"score": left}
        first = await retry_items(here, place, 77, bad=[])
        assert await list_failed(here, first) == [7, 50]
        loop = (await here.get(f"{first}/view"))["steps"]["score"]["loop"]
        assert (loop["total"], loop["ok"], loop["failed"], loop["left"]) == (1, 1, 0, 2)
        items, _ = await read_all(here, f"{first}/steps/score/items", status="all", limit=200)
        assert sorted(item["index"] for item in items) == [*range(100)]
        for index, status in ((7, "error"), (77, "ok"), (3, "ok")):
            data = await here.get(f"{first}/steps/score/data", item=index)
            assert data["output"]["status"] == status, index
        told = await read_summaries(here, first)
        assert told["command.issued"] == ["score: item 77 issued to pool cpu"]
        assert told["command.completed"] == ["score: item 77: 1 ok"]
        (span,) = (await here.get(f"{first}/timeline", step="score"))["spans"]
        assert (span["first"], span["repeats"], span["indexes"]) == (0, True, [77, 77])
        second = await retry_items(here, first, 7, bad=[])
        assert await list_failed(here, second) == [50]
        last = (await here.http.post(f"{second}/retry", json={"payload": {"bad": []}})).json()
        await here.wait_for_end(last["execution_id"])
        assert await list_failed(here, f"/api/executions/{last['execution_id']}") == [50]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"items": {"score": [7, 8]}}, "item 8 of step 'score' has no failure of its own"),
        ({"items": {"score": [100]}}, "item 100 of step 'score' has no failure"),
        ({"items": {"plan": [0]}}, "item 0 of step 'plan' has no failure"),
        ({"steps": ["plan"]}, "'plan' is not one that a retry begins with: score"),
    ],
)
async def test_items_that_have_not_failed_do_not_run_again(
    body: dict[str, Any], reason: str
) -> None:
    async with run_playbook() as (here, place):
        for route in ("retry", "retry/preview"):
            answer = await here.http.post(f"{place}/{route}", json=body)
            assert (answer.status_code, answer.json()["code"]) == (409, "CONFLICT"), answer.text
            assert reason in answer.json()["detail"]


async def test_an_item_that_succeeded_in_a_retry_is_not_failed_any_more() -> None:
    async with run_playbook() as (here, place):
        first = await retry_items(here, place, 77, bad=[])
        answer = await here.http.post(f"{first}/retry", json={"items": {"score": [77]}})
        assert answer.status_code == 409
        whole = await here.http.post(f"{first}/retry", json={"payload": {"bad": []}})
        await here.wait_for_end(whole.json()["execution_id"])
        place = f"/api/executions/{whole.json()['execution_id']}"
        answer = await here.http.post(f"{place}/retry", json={"items": {"score": [7]}})
        assert answer.status_code == 409
        preview = await here.http.post(f"{place}/retry/preview", json={"items": {"score": [50]}})
        assert preview.json()["items"]["score"]["again"] == 1


async def test_indexes_of_items_are_numbers_and_not_too_many() -> None:
    async with run_playbook() as (here, place):
        for items in ({"score": []}, {"score": [-1]}, {"score": ["7"]}, {"score": [7] * 201}):
            answer = await here.http.post(f"{place}/retry", json={"items": items})
            assert answer.status_code == 422, items


# ---- items of a command, and children -------------------------------------------------------------


async def test_items_of_one_command_are_listed_with_their_times() -> None:
    text = SCORE.replace("mode: parallel,", "mode: parallel, chunk: 30,")
    async with run_playbook(text) as (here, place):
        part = {"status": "all", "first": 30, "count": 30}
        items, _ = await read_all(here, f"{place}/steps/score/items", limit=10, **part)
        assert [item["index"] for item in items] == [*range(30, 60)]
        failed = await here.get(f"{place}/steps/score/items", first=30, count=30)
        assert [item["index"] for item in failed["items"]] == [50]
        times = await here.get(f"{place}/steps/score/times", first=90, count=30)
        assert (times["items"], times["is_whole"], len(times["bars"])) == (10, True, 10)
        assert [bar["first"] for bar in times["bars"]] == [*range(90, 100)]
        all_times = await here.get(f"{place}/steps/score/times", first=60, count=30)
        assert [bar["slowest"] for bar in all_times["bars"] if bar["failed"]] == [77]


CHILD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: child, path: tests/child}
workload: {n: 0}
workflow:
  - step: greet
    tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "result = 1 / n"}
"""
PARENT = (
    HEAD
    + """
workflow:
  - step: each
    loop: {in: [1, 0, 2], iterator: n, spec: {mode: parallel, policy: {failure: best_effort}}}
    tool: {kind: playbook, path: tests/child, input: {n: "{{ n }}"}}
"""
)


async def test_items_name_the_executions_that_they_started() -> None:
    store = ResultsMemory()
    async with run_api_server(store=store) as here, run_worker(here, store=store):
        await here.register(CHILD)
        await here.register(PARENT)
        execution_id = await here.start("tests/items")
        await here.wait_for_end(execution_id)
        place = f"/api/executions/{execution_id}/steps/each/items"
        items = (await here.get(place, status="all"))["items"]
        assert [item["status"] for item in items] == ["ok", "error", "ok"]
        children = [child for item in items for child in item["children"]]
        listed = await here.get("/api/executions", parent=execution_id)
        assert len(children) == 3
        assert set(children) == {row["execution_id"] for row in listed["executions"]}
        for item, n in zip(items, (1, 0, 2), strict=True):
            workload = await here.get(f"/api/executions/{item['children'][0]}/workload")
            assert workload["n"] == n
