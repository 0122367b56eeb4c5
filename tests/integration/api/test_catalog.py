"""The catalog over HTTP."""

from noetl.model.ids import Tenant
from tests.integration.api.api_server import NOOP, ApiServer, run_api_server

YAML = {"Content-Type": "text/yaml"}


async def put(here: ApiServer, text: str) -> tuple[int, dict[str, object]]:
    answer = await here.http.post("/api/catalog/register", content=text, headers=YAML)
    return answer.status_code, answer.json()


async def test_the_text_registered_last_is_the_latest_version() -> None:
    async with run_api_server() as here:
        code, first = await put(here, NOOP)
        assert (code, first["version"], first["created"]) == (201, 1, True)
        code, second = await put(here, NOOP.replace("{n: 1}", "{n: 2}"))
        assert (code, second["version"]) == (201, 2)
        code, again = await put(here, NOOP.replace("{n: 1}", "{n: 2}"))
        assert (code, again["version"], again["created"], again["hash"]) == (
            200,
            2,
            False,
            second["hash"],
        )
        latest = await here.get("/api/catalog/playbooks/tests/simple")
        assert (latest["version"], "{n: 2}" in latest["content"]) == (2, True)
        older = await here.get("/api/catalog/playbooks/tests/simple", version=1)
        assert older["content"] == NOOP
        assert await here.get(f"/api/catalog/hashes/{first['hash']}") == older
        code, rolled_back = await put(here, NOOP)
        assert (code, rolled_back["version"], rolled_back["created"]) == (201, 3, True)
        assert rolled_back["hash"] == first["hash"]
        latest = await here.get("/api/catalog/playbooks/tests/simple")
        assert (latest["version"], latest["content"]) == (3, NOOP)


async def test_versions_and_their_difference() -> None:
    async with run_api_server() as here:
        for number in (1, 2, 3):
            await put(here, NOOP.replace("{n: 1}", f"{{n: {number}}}"))
        page = await here.get("/api/catalog/versions/tests/simple", limit=2)
        assert ([entry["version"] for entry in page["versions"]], page["next"]) == ([3, 2], 2)
        page = await here.get("/api/catalog/versions/tests/simple", limit=2, before=page["next"])
        assert ([entry["version"] for entry in page["versions"]], page["next"]) == ([1], None)
        found = await here.get("/api/catalog/diff/tests/simple", older=1)
        assert found["newer"] == 3
        assert "-workload: {n: 1}\n+workload: {n: 3}\n" in found["diff"]
        assert (await here.get("/api/catalog/diff/tests/simple", older=2, newer=2))["diff"] == ""


async def test_json_may_name_another_path_and_the_list_is_by_path() -> None:
    async with run_api_server() as here:
        for path in ("b/two", "a/one", "b/one"):
            answer = await here.http.post(
                "/api/catalog/register", json={"content": NOOP, "path": path}
            )
            assert (answer.status_code, answer.json()["path"]) == (201, path)
        page = await here.get("/api/catalog", limit=2)
        assert ([entry["path"] for entry in page["playbooks"]], page["next"]) == (
            ["a/one", "b/one"],
            "b/one",
        )
        page = await here.get("/api/catalog", limit=2, after=page["next"])
        assert ([entry["path"] for entry in page["playbooks"]], page["next"]) == (["b/two"], None)
        assert len((await here.get("/api/catalog", prefix="b/"))["playbooks"]) == 2


async def test_an_invalid_playbook_is_refused_with_findings() -> None:
    async with run_api_server() as here:
        code, told = await put(here, NOOP.replace("next: two", "next: nowhere"))
        assert (code, told["code"]) == (422, "PLAYBOOK_INVALID")
        findings = told["findings"]
        assert isinstance(findings, list)
        assert {"UNKNOWN_STEP"} <= {finding["code"] for finding in findings}
        assert all(finding["line"] > 0 for finding in findings)
        for text in ("", "[]", "\x00", "a: &x [*x]", "kind: {" * 50):
            assert (await put(here, text))[0] == 422


async def test_what_is_no_playbook_is_refused() -> None:
    async with run_api_server() as here:
        register = "/api/catalog/register"
        for kwargs in (
            {"content": NOOP}, {"content": NOOP, "headers": {"Content-Type": "text/plain"}},
            {"content": b"\xff\xfe", "headers": YAML}, {"json": {"content": NOOP, "pth": "x"}}, {"json": {}}, {"json": []},
            {"json": {"content": NOOP, "path": "../etc"}}, {"json": {"content": NOOP, "path": "/x"}}, {"json": {"content": 1}},
        ):  # fmt: skip
            answer = await here.http.post(register, **kwargs)
            assert answer.status_code == 422, (kwargs, answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
        answer = await here.http.get("/api/catalog/playbooks/tests/simple")
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


GRAPH = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: graph, path: tests/graph}
executor: {spec: {final_step: tidy}}
workload: {n: 3}
workflow:
  - step: plan
    tool: {kind: noop}
    next: score
  - step: score
    loop: {in: "{{ range(workload.n) }}", iterator: i}
    tool:
      - {name: a, kind: python, code: "result = 1"}
      - {name: b, kind: http, url: "http://127.0.0.1/"}
      - {name: c, kind: python, code: "result = 2"}
    next:
      - step: report
        when: "{{ output.stats.failed == 0 }}"
      - step: repair
  - step: report
    spec: {policy: {admit: {rules: [{when: "{{ workload.n > 3 }}", then: {allow: false, next: repair}}]}}}
  - step: repair
  - step: tidy
"""


async def test_the_graph_of_a_text_has_its_steps_and_arcs_with_lines() -> None:
    async with run_api_server() as here:
        _, registered = await put(here, GRAPH)
        answer = await here.http.get(f"/api/catalog/hashes/{registered['hash']}/graph")
        assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
        graph = answer.json()
        text = GRAPH.splitlines()
        assert (graph["hash"], graph["path"]) == (registered["hash"], "tests/graph")
        steps = {step.pop("name"): step for step in graph["steps"]}
        assert all(f"step: {name}" in text[step["line"] - 1] for name, step in steps.items())
        assert [name for name, step in steps.items() if step["entry"]] == ["plan"]
        assert [name for name, step in steps.items() if step["final"]] == ["tidy"]
        assert [name for name, step in steps.items() if step["loop"]] == ["score"]
        assert steps["score"]["kinds"] == ["python", "http"]
        arcs = [(arc["id"], arc["to"], arc["when"], arc["else"]) for arc in graph["arcs"]]
        assert arcs == [
            ("plan:0", "score", None, False),
            ("score:0", "report", "{{ output.stats.failed == 0 }}", False),
            ("score:1", "repair", None, True),
        ]
        assert [text[arc["line"] - 1].strip() for arc in graph["arcs"][1:]] == [
            "- step: report",
            "- step: repair",
        ]
        (skip,) = graph["skips"]
        assert (skip["from"], skip["to"], skip["rule"]) == ("report", "repair", 0)
        assert skip["when"] == "{{ workload.n > 3 }}"
        whole = await here.http.get(f"/api/catalog/hashes/{registered['hash']}")
        assert whole.headers["cache-control"] == "private, max-age=31536000, immutable"


async def test_a_hash_that_nothing_has_is_not_found_and_not_kept() -> None:
    async with run_api_server() as here:
        for unknown in ("0" * 64, "x", "%27", "a" * 3000):
            for route in ("", "/graph"):
                answer = await here.http.get(f"/api/catalog/hashes/{unknown}{route}")
                assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
                assert answer.headers["cache-control"] == "no-store"


async def test_a_text_of_another_tenant_has_no_graph() -> None:
    async with run_api_server() as here:
        await here.node.ports.catalog.register("tests/graph", GRAPH, Tenant(2))
        entry = await here.node.ports.catalog.find("tests/graph", tenant=Tenant(2))
        assert entry is not None
        answer = await here.http.get(f"/api/catalog/hashes/{entry.hash}/graph")
        assert answer.status_code == 404


async def test_the_session_names_the_caller() -> None:
    async with run_api_server() as here:
        session = await here.get("/api/session")
        assert session.pop("version")
        permissions = ["read", "operate", "write", "administer", "work"]
        assert session.pop("permissions") == permissions
        assert session == {"name": "local", "tenant": 1, "roles": ["admin", "worker"]}
