"""The catalog over HTTP."""

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
