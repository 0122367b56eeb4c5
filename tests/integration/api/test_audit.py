"""The audit trail over HTTP: what is written of changes and refused calls, and what is not."""

from typing import Any

import httpx

from noetl.accounts.texts import read_token_id
from tests.integration.api.api_server import (
    NOOP,
    WAITS,
    ApiServer,
    make_memory_ports,
    run_api_server,
)

SECRET = "canary-4471-secret"


async def list_audit(server: ApiServer, **wanted: Any) -> list[dict[str, Any]]:
    answer = await server.http.get("/api/audit", params=wanted)
    assert answer.status_code == 200, answer.text
    entries: list[dict[str, Any]] = answer.json()["entries"]
    return entries


async def test_changes_are_in_the_trail_with_who_and_where_and_without_secrets(
    tmp_path: Any,
) -> None:
    async with run_api_server(make_memory_ports(home=tmp_path)) as server:
        made = await server.http.post(
            "/api/tokens",
            json={"name": "ci", "roles": ["operator"]},
            headers={"X-Request-Id": "deploy-7"},
        )
        assert made.headers["X-Request-Id"] == "deploy-7"
        token = made.json()
        fields = {"name": "gh", "kind": "bearer", "data": {"token": SECRET}}
        assert (await server.http.post("/api/credentials", json=fields)).status_code < 300
        await server.register(WAITS)
        await server.register(WAITS)  # the same text again changes nothing
        execution_id = await server.start("tests/waits")
        await server.http.post(
            f"/api/executions/{execution_id}/signals/go", json={"payload": SECRET}
        )
        await server.http.post(f"/api/executions/{execution_id}/cancel")
        # the whole token instead of its id, by mistake
        assert (await server.http.delete(f"/api/tokens/{token['token']}")).status_code == 404
        await server.http.delete(f"/api/tokens/{token['token_id']}")
        await server.http.delete("/api/credentials/gh")
        entries = await list_audit(server)
        told = [(row["operation"], row["object"], row["outcome"]) for row in reversed(entries)]
        assert told[-9:] == [
            ("token.create", token["token_id"], "allowed"),
            ("credential.add", "gh", "allowed"),
            ("playbook.register", "tests/waits", "allowed"),
            ("execution.signal", execution_id, "allowed"),
            ("execution.cancel", execution_id, "allowed"),
            ("token.revoke", token["token_id"], "allowed"),
            ("token.revoke", token["token_id"], "failed"),
            ("token.revoke", token["token_id"], "allowed"),
            ("credential.delete", "gh", "allowed"),
        ]
        created = entries[8]
        assert (created["address"], created["request_id"]) == ("127.0.0.1", "deploy-7")
        assert created["token_id"] == read_token_id(server.token)
        chain = (await server.http.get("/api/audit/chain")).text
        assert SECRET not in chain
        assert token["token"].rpartition("_")[2] not in chain
        assert server.token not in chain


async def test_starts_are_not_in_the_trail() -> None:
    async with run_api_server() as server:
        await server.register(NOOP)
        before = len(await list_audit(server))
        await server.start()
        assert len(await list_audit(server)) == before


async def test_refused_calls_are_in_the_trail() -> None:
    async with run_api_server() as server:
        viewer = await server.make_token("viewer")
        as_viewer = {"Authorization": f"Bearer {viewer}"}
        for _ in range(3):
            refused = await server.http.get("/api/tokens", headers=as_viewer)
            assert refused.status_code == 403
            assert refused.headers["X-Request-Id"]
        async with httpx.AsyncClient(base_url=server.url) as nobody:
            assert (await nobody.get("/api/tokens")).status_code == 401
            await nobody.post("/api/session", json={"token": "wrong"})
        refused_calls = server.node.server.refused_calls
        assert refused_calls is not None
        await refused_calls.run_once()
        entries = await list_audit(server, outcome="refused")
        assert {(row["by"], row["token_id"], row["code"], row["count"]) for row in entries} == {
            ("test", read_token_id(viewer), "NOT_PERMITTED", 3),
            (None, None, "NOT_AUTHENTICATED", 2),
        }
        assert {row["operation"] for row in entries} == {"call.refused"}


async def test_every_tenant_sees_its_own_trail() -> None:
    async with run_api_server() as server:
        header = await server.make_foreign_header()
        await server.http.post("/api/tokens", json={"name": "mine", "roles": ["viewer"]})
        theirs = {"name": "theirs", "roles": ["viewer"]}
        await server.http.post("/api/tokens", json=theirs, headers=header)
        foreign = (await server.http.get("/api/audit", headers=header)).json()["entries"]
        assert [row["detail"]["name"] for row in foreign] == ["theirs"]
        assert "theirs" not in (await server.http.get("/api/audit/chain")).text
        chain = (await server.http.get("/api/audit/chain", headers=header)).json()
        assert (len(chain["entries"]), chain["head"]["seq"]) == (1, 1)


async def test_changes_of_users_and_tenants_are_in_the_trail() -> None:
    async with run_api_server() as server:
        user = {"name": "ada", "roles": ["viewer"], "password": SECRET}
        assert (await server.http.post("/api/users", json=user)).status_code == 201
        await server.http.put("/api/users/ada/roles", json={"roles": ["operator"]})
        await server.http.put("/api/users/ada/password", json={"password": SECRET * 2})
        await server.http.post("/api/users/ada/disable")
        assert (await server.http.post("/api/tenants", json={"name": "blue"})).status_code == 201
        await server.http.put("/api/tenants/blue/quotas", json={"running": 3})
        entries = await list_audit(server, limit=6)
        assert [(row["operation"], row["object"], row["detail"]) for row in reversed(entries)] == [
            ("user.create", "ada", {"roles": "viewer"}),
            ("user.roles", "ada", {"roles": "operator"}),
            ("user.password", "ada", {}),
            ("user.disable", "ada", {}),
            ("tenant.create", "blue", {}),
            ("tenant.quotas", "blue", {"running": 3}),
        ]
        assert SECRET not in (await server.http.get("/api/audit/chain")).text
