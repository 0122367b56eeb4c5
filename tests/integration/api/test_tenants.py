"""Tenants: who may make them, what their quotas refuse, and that nothing of one reaches another."""

import asyncio
import hmac
import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from noetl.accounts.tenants import TenantQuotas
from noetl.model.errors import NotFound
from noetl.model.exchange import ExchangeRequest, LeaseKey
from noetl.model.ids import RefId, Tenant
from noetl.model.messages import StoredRef
from noetl.model.reference import Reference, derive_ref_id
from noetl.runtime.node import Node
from noetl.server.http.application import create_router
from noetl.server.tenants import quotas as quotas_module
from tests.integration.api.api_server import NOOP, WAITS, ApiServer, run_api_server
from tests.integration.api.two_tenants import (
    NAMES,
    open_two_tenants,
    read_some,
)
from tests.waiting import wait_until

BETA = Tenant(3)


async def test_only_administrators_of_the_installation_make_tenants() -> None:
    async with run_api_server() as here:
        made = await here.http.post("/api/tenants", json={"name": "acme"})
        assert (made.status_code, made.json()["number"]) == (201, 2)
        again = await here.http.post("/api/tenants", json={"name": "acme"})
        assert (again.status_code, again.json()["code"]) == (409, "CONFLICT")
        for name in ("", "A", "-a", "a b", "a" * 64, "../x"):
            assert (await here.http.post("/api/tenants", json={"name": name})).status_code == 422
        names = [row["name"] for row in (await here.get("/api/tenants"))["tenants"]]
        assert names == ["default", "acme"]
        theirs = {"Authorization": f"Bearer {await here.make_token('admin', tenant='acme')}"}
        async with httpx.AsyncClient(base_url=here.url, headers=theirs, trust_env=False) as http:
            for method, path, body in (
                ("POST", "/api/tenants", {"name": "x"}),
                ("GET", "/api/tenants", None),
                ("GET", "/api/tenants/acme", None),
                ("PUT", "/api/tenants/acme/quotas", {}),
                ("GET", "/metrics", None),
            ):
                refused = await http.request(method, path, json=body)
                assert (refused.status_code, path) == (403, path)
            assert (await http.get("/api/session")).json()["tenant"] == 2


async def test_an_administrator_of_a_tenant_makes_tokens_of_it_only() -> None:
    async with run_api_server() as here:
        theirs = {"Authorization": f"Bearer {await here.make_foreign_token('admin')}"}
        async with httpx.AsyncClient(base_url=here.url, headers=theirs, trust_env=False) as http:
            wanted: dict[str, Any] = {"name": "x", "roles": ["admin"]}
            own = await http.post("/api/tokens", json=wanted)
            assert (own.status_code, own.json()["tenant"]) == (201, "mallory")
            named = await http.post("/api/tokens", json={**wanted, "tenant": "mallory"})
            assert named.status_code == 201
            answers = []
            for tenant in ("default", "nobody"):
                refused = await http.post("/api/tokens", json={**wanted, "tenant": tenant})
                listed = await http.get("/api/tokens", params={"tenant": tenant})
                gone = await http.delete("/api/tokens/x", params={"tenant": tenant})
                answers.append([each.json() for each in (refused, listed, gone)])
            assert answers[0] == answers[1], "nobody learns which tenants there are"
            assert {each["code"] for each in answers[0]} == {"NOT_PERMITTED"}
            seen = {row["tenant"] for row in (await http.get("/api/tokens")).json()["tokens"]}
            assert seen == {"mallory"}
        listed = await here.get("/api/tokens", tenant="mallory")
        assert len(listed["tokens"]) == 3
        token_id = listed["tokens"][0]["token_id"]
        assert (await here.http.delete(f"/api/tokens/{token_id}")).status_code == 404
        revoked = await here.http.delete(f"/api/tokens/{token_id}", params={"tenant": "mallory"})
        assert revoked.json()["revoked_at"] is not None


# -- quotas --


async def set_quotas(here: ApiServer, **limits: int | None) -> None:
    answer = await here.http.put("/api/tenants/default/quotas", json=limits)
    assert answer.status_code == 200, answer.text


async def test_a_start_beyond_the_quota_of_running_executions_is_refused() -> None:
    async with run_api_server() as here:
        await here.register(WAITS)
        await set_quotas(here, running=2)
        headers = {"Idempotency-Key": "first"}
        first = await here.http.post("/api/execute", json={"path": "tests/waits"}, headers=headers)
        at_once = [here.http.post("/api/execute", json={"path": "tests/waits"}) for _ in range(5)]
        answers = await asyncio.gather(*at_once)
        assert sorted(each.status_code for each in answers) == [202, 429, 429, 429, 429]
        refused = next(each for each in answers if each.status_code == 429)
        problem = refused.json()
        assert problem["code"] == "QUOTA_EXCEEDED"
        assert problem["detail"] == (
            "the quota `running` of tenant default is used up: 2 executions that have not ended, "
            "the limit is 2"
        )
        assert "noetl tenant quota set default --running N" in problem["hint"]
        assert refused.headers["retry-after"] == "5"
        repeated = await here.http.post(
            "/api/execute", json={"path": "tests/waits"}, headers=headers
        )
        assert repeated.json()["execution_id"] == first.json()["execution_id"], "it was accepted"
        for path in ("retry", "rerun"):  # they start executions too
            ended = await here.http.post(f"/api/executions/{first.json()['execution_id']}/{path}")
            assert ended.status_code == 409  # it has not ended

        async def is_shown() -> bool:
            shown = await here.get("/api/tenants/default")
            return (shown["quotas"]["running"], shown["usage"]["running"]) == (2, 2)

        await wait_until(is_shown)  # rows are written a little later
        await set_quotas(here, running=3)
        await here.start("tests/waits")


async def test_an_execution_that_ends_makes_room() -> None:
    async with run_api_server() as here:
        await here.register(WAITS)
        await set_quotas(here, running=1)
        execution_id = await here.start("tests/waits")
        body = {"path": "tests/waits"}
        assert (await here.http.post("/api/execute", json=body)).status_code == 429
        await here.http.post(f"/api/executions/{execution_id}/cancel")

        async def is_accepted() -> bool:
            return (await here.http.post("/api/execute", json=body)).status_code == 202

        await wait_until(is_accepted)


async def test_starts_wait_for_workers_and_for_room_in_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas_module, "USAGE_TTL_S", 0.0)
    monkeypatch.setattr(quotas_module, "MIN_RECOUNT_S", 0.0)
    async with run_api_server() as here:
        await here.register(NOOP)
        await set_quotas(here, queued=1)
        await here.start()

        async def read_usage() -> Any:
            return (await here.get("/api/tenants/default"))["usage"]

        async def is_queued() -> bool:
            return (await read_usage())["queued"] == 1

        await wait_until(is_queued)

        answer = await here.http.post("/api/execute", json={"path": "tests/simple"})
        assert (answer.status_code, "quota `queued`" in answer.text) == (429, True)
        await set_quotas(here, bytes=0)
        answer = await here.http.post("/api/execute", json={"path": "tests/simple"})
        assert (answer.status_code, "quota `bytes`" in answer.text) == (429, True)

        async def is_measured() -> bool:
            return bool(await read_usage() == {"running": 1, "queued": 1, "bytes": 0})

        await wait_until(is_measured)


async def test_a_tenant_without_quotas_is_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_api_server() as here:
        await here.register(NOOP)

        async def measure_usage(*_: Any, **more: Any) -> Any:
            raise AssertionError("it was measured")

        monkeypatch.setattr(here.node.ports.stores.usage, "measure_usage", measure_usage)
        for _ in range(3):
            await here.start()


async def test_usage_is_measured_once_for_many_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas_module, "USAGE_TTL_S", 60.0)
    async with run_api_server() as here:
        await here.register(NOOP)
        await set_quotas(here, running=1_000)
        measured: list[Any] = []
        measure = here.node.ports.stores.usage.measure_usage

        async def measure_usage(*wanted: Any, **more: Any) -> Any:
            measured.append(wanted)
            return await measure(*wanted, **more)

        monkeypatch.setattr(here.node.ports.stores.usage, "measure_usage", measure_usage)
        await asyncio.gather(*[here.start() for _ in range(20)])
        assert len(measured) == 1


# -- nothing crosses --


async def test_workers_with_the_same_name_and_pool_get_commands_of_their_tenant_only(
    tmp_path: Path,
) -> None:
    async with open_two_tenants(tmp_path, work=False) as (_, users):
        alpha, beta = (users[name] for name in NAMES)
        for user in users.values():
            await user.post(
                "/api/catalog/register", content=NOOP, headers={"Content-Type": "text/yaml"}
            )
        poll = ExchangeRequest(worker="same", incarnation="1", free=4, wait=50_000)
        waiting = asyncio.ensure_future(
            beta.channel.exchange(
                ExchangeRequest(worker="same", incarnation="1", free=4, wait=3_000_000)
            )
        )
        await alpha.post("/api/execute", json={"path": "tests/simple"})
        theirs = (await alpha.channel.exchange(poll)).commands
        while not theirs:
            theirs = (await alpha.channel.exchange(poll)).commands
        assert not waiting.done(), "a command of the pool of this name was handed to nobody else"
        await beta.post("/api/execute", json={"path": "tests/simple"})
        (own,) = (await waiting).commands
        (command,) = theirs
        assert (command.tenant, own.tenant) == (Tenant(2), BETA)
        assert command.execution_id != own.execution_id
        # A worker of another tenant lists the command as its own: it is told to stop, and the
        # lease of the worker that has it stays.
        held = (LeaseKey(command.command_id, command.attempt),)
        forged = ExchangeRequest(worker="same", incarnation="1", held=held)
        assert (await beta.channel.exchange(forged)).stop == held
        kept = await alpha.channel.exchange(forged)
        assert (kept.stop, kept.commands) == ((), ())
        # It restarts under the name of the other: only its own command is given up.
        await beta.channel.exchange(ExchangeRequest(worker="same", incarnation="2"))
        kept = await alpha.channel.exchange(forged)
        assert (kept.stop, kept.commands) == ((), ())
        rows = (await beta.ask("GET", "/api/queue")).json()
        assert command.command_id not in json.dumps(rows)


async def test_the_commands_of_a_killed_worker_stay_in_its_tenant(tmp_path: Path) -> None:
    async with open_two_tenants(tmp_path, work=False) as (here, users):
        alpha, beta = (users[name] for name in NAMES)
        await alpha.post(
            "/api/catalog/register", content=NOOP, headers={"Content-Type": "text/yaml"}
        )
        await alpha.post("/api/execute", json={"path": "tests/simple"})
        poll = ExchangeRequest(worker="same", incarnation="1", free=4, wait=100_000)
        commands = (await alpha.channel.exchange(poll)).commands
        while not commands:
            commands = (await alpha.channel.exchange(poll)).commands
        queue = here.node.ports.stores.queue
        assert await queue.end_leases("same/1", BETA) == 0
        assert await queue.end_leases("same/1", Tenant(2)) == 1  # it was killed
        found: tuple[Any, ...] = ()
        while not found:
            assert (await beta.channel.exchange(poll)).commands == ()
            other = ExchangeRequest(worker="other", incarnation="1", free=1, wait=100_000)
            found = (await alpha.channel.exchange(other)).commands
        assert (found[0].command_id, found[0].attempt) == (commands[0].command_id, 2)


async def test_a_worker_reads_nothing_of_another_tenant(tmp_path: Path) -> None:
    async with open_two_tenants(tmp_path) as (here, users):
        alpha, beta = (users[name] for name in NAMES)
        await asyncio.gather(alpha.fill(), beta.fill())
        for user in users.values():
            assert await user.channel.read_credential("shared") == {"secret": user.canary}
        assert alpha.canary in await alpha.channel.fetch_playbook(alpha.ids["hash"])
        with pytest.raises(NotFound) as foreign:
            await beta.channel.fetch_playbook(alpha.ids["hash"])
        with pytest.raises(NotFound) as unknown:
            await beta.channel.fetch_playbook("0" * 64)
        assert str(foreign.value).replace(alpha.ids["hash"], "0" * 64) == str(unknown.value)
        database: Any = here.node.ports.stores.log
        tables = database._db  # what is stored, to ask for all of it
        for key in list(tables.blobs):
            owner = tables.find_tenant(key.uri.split("/")[3])
            for user, tenant in ((alpha, Tenant(2)), (beta, BETA)):
                found = await user.channel.payload(key.ref_id, key.uri)
                assert (found is not None) == (owner == tenant), key
        assert {len(tables.manifests), len(tables.manifest_tenants)} == {2}
        for manifest, owner in tables.manifest_tenants.items():
            assert bool(await alpha.channel.list_manifest_parts(manifest)) == (owner == Tenant(2))
            assert bool(await beta.channel.list_manifest_parts(manifest)) == (owner == BETA)
        # Nor does it write there.
        theirs = alpha.ids["execution_id"]
        uri = f"noetl://execution/{theirs}/result/plan/forged"
        digest = sha256(b"1").hexdigest()
        forged = Reference(ref_id=derive_ref_id(uri), type="kv", uri=uri, sha256=digest)
        with pytest.raises(NotFound):
            await beta.channel.put_payload(forged, b"1")
        line = b'[{"text":"forged"}]'
        log_uri = f"noetl://execution/{theirs}/log/plan/c-1-0"
        log = Reference(ref_id=RefId("77"), type="kv", uri=log_uri, sha256=sha256(line).hexdigest())
        await beta.channel.put_logs((StoredRef(reference=log, payload=line),))
        assert theirs not in tables.logs
        assert await beta.channel.find_orphans(theirs, [uri]) == []  # type: ignore[arg-type]
        assert await alpha.channel.find_orphans(theirs, [uri]) == [uri]  # type: ignore[arg-type]


async def test_a_hook_of_a_tenant_has_an_address_for_callers_without_a_token(
    tmp_path: Path,
) -> None:
    async with open_two_tenants(tmp_path) as (here, users):
        alpha, beta = (users[name] for name in NAMES)
        await asyncio.gather(alpha.fill(), beta.fill())
        body = b'{"order": 7}'

        def sign(secret: str) -> dict[str, str]:
            digest = hmac.new(secret.encode(), body, sha256).hexdigest()
            return {"X-Hub-Signature-256": f"sha256={digest}"}

        async with httpx.AsyncClient(base_url=here.url, trust_env=False) as http:
            for user, other in ((alpha, beta), (beta, alpha)):
                place = f"/api/tenants/{user.name}/hooks/shared"
                called = await http.post(place, content=body, headers=sign(user.canary))
                assert called.status_code == 202, called.text
                started = called.json()["execution_id"]
                assert (await user.ask("GET", f"/api/executions/{started}")).status_code == 200
                assert (await other.ask("GET", f"/api/executions/{started}")).status_code == 404
                forged = await http.post(place, content=body, headers=sign(other.canary))
                assert forged.status_code == 401
            missing = [
                await http.post(f"/api/tenants/{tenant}/hooks/{hook}", content=body)
                for tenant, hook in (("nobody", "shared"), ("alpha", "none"))
            ]
            assert [each.status_code for each in missing] == [401, 401]
            assert missing[0].json() == missing[1].json()
        crossed = await beta.ask("POST", "/api/tenants/alpha/hooks/shared", content=body)
        unknown = await beta.ask("POST", "/api/tenants/nobody/hooks/shared", content=body)
        assert (crossed.status_code, crossed.json()) == (404, unknown.json())


# -- every route --


UNKNOWN = {
    "execution_id": "7",
    "name": "nothing",
    "path": "tests/nothing",
    "step": "nothing",
    "hash": "0" * 64,
    "id": "nothing",
    "ref_id": "7",
    "token_id": "nothing",
    "tenant": "nothing",
}
QUERIES: dict[str, dict[str, str]] = {
    "/api/catalog/diff/{path:path}": {"older": "1"},
    "/api/executions/{execution_id}/steps/{step}/times": {"first": "0"},
    "/api/worker/payloads/{ref_id}": {"uri": "noetl://execution/{execution_id}/result/plan/k"},
}
BODIES: dict[str, dict[str, Any]] = {
    "/api/state/value/{name}/{path:path}": {"value": 1},
    "/api/executions/{execution_id}/signals/{name}": {"payload": 1},
}


def list_paths(node: Node) -> list[tuple[str, str]]:
    """The routes with a path parameter."""
    router = create_router(
        node.services,
        node.metrics,
        node.worker_routes,
        None,  # type: ignore[arg-type]
    )
    return [(method, path) for method, path, _ in router.list_endpoints() if "{" in path]


def fill_path(path: str, ids: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda match: ids.get(match[1], "nothing"), path)


def replace_ids(text: str, ids: dict[str, str]) -> str:
    """The text with the ids of things that are not there, so that two answers can be compared."""
    for parameter in sorted(ids, key=lambda each: -len(ids[each])):
        text = text.replace(ids[parameter], UNKNOWN.get(parameter, "nothing"))
    return re.sub(r'"at":"[^"]*"|"\w+_at":"[^"]*"', "", text)


async def test_a_token_of_another_tenant_gets_the_answer_for_things_that_are_not_there(
    tmp_path: Path,
) -> None:
    """Every route with a path parameter, with the ids of real things of the first tenant."""
    async with open_two_tenants(tmp_path) as (here, users):
        alpha, _ = (users[name] for name in NAMES)
        await alpha.fill()
        database: Any = here.node.ports.stores.log
        tables = database._db
        ids = {
            **alpha.ids,
            "id": next(iter(tables.manifests)),
            "ref_id": str(next(iter(tables.blobs)).ref_id),
        }
        wrong: list[Any] = []
        for role in ("admin", "worker"):
            stranger = await here.make_foreign_token(role)
            headers = {"Authorization": f"Bearer {stranger}"}
            async with httpx.AsyncClient(
                base_url=here.url, headers=headers, trust_env=False, timeout=30
            ) as http:
                for method, path in list_paths(here.node):
                    answers = []
                    for these in (ids, UNKNOWN):
                        params = {
                            name: fill_path(value, these)
                            for name, value in QUERIES.get(path, {}).items()
                        }
                        answer = await read_some(
                            http,
                            method,
                            fill_path(path, these),
                            params=params,
                            json=BODIES.get(path, {}) if method in ("POST", "PUT") else None,
                        )
                        answers.append((answer.status_code, replace_ids(answer.text, these)))
                        if alpha.canary in answer.text:
                            wrong.append((role, method, path, "a canary"))
                    if answers[0] != answers[1]:
                        wrong.append((role, method, path, answers))
        assert wrong == []


def test_quotas_are_none_or_some() -> None:
    assert not TenantQuotas().has_any
    assert TenantQuotas(bytes=0).has_any
