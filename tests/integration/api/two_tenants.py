"""Two tenants on one server, with the same names for everything, and with secrets of their own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from noetl.model.identity import LOCAL_IDENTITY
from noetl.results.router import ResultRouter
from noetl.results.staging import Staging
from noetl.results.tenancy import StoreTenant
from noetl.results.tiers.files import FileTier
from noetl.results.tiers.kv import BlobServers
from noetl.results.tiers.large import LargeStore
from noetl.worker.http import HttpChannel
from tests.integration.api.api_server import (
    ApiServer,
    make_memory_ports,
    read_messages,
    run_api_server,
    run_worker,
)
from tests.waiting import HANG_LIMIT_S

PATH = "tests/shared"
NAMES = ("alpha", "beta")
# The rows of the loop are more than a report carries, so that payloads of all tiers are there.
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: shared, path: tests/shared, description: CANARY}
workload: {mark: CANARY}
workflow:
  - step: plan
    tool: {kind: noop, input: {rows: [{mark: "{{ workload.mark }}"}, {mark: CANARY}], name: CANARY}}
    set: {ctx.mark: "{{ workload.mark }}", state.mark: "{{ workload.mark }}"}
    next: each
  - step: each
    loop: {in: "{{ plan.rows }}", iterator: row}
    tool: {kind: noop, input: {row: "{{ row }}", mark: CANARY}}
    next: wait
  - step: wait
    tool: {kind: wait, signal: go}
    next: end
  - step: end
    tool: {kind: noop, input: {mark: CANARY}}
"""


@dataclass
class TenantUser:
    """The administrator and the worker of a tenant. Everything of theirs contains `canary`."""

    name: str
    canary: str
    http: httpx.AsyncClient
    token: str
    worker_token: str
    channel: HttpChannel
    ids: dict[str, str] = field(default_factory=dict)  # of things, by the path parameter they fill

    async def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await self.http.request(method, path, **more)

    async def fill(self) -> None:
        """One thing of every kind, under the same names in both tenants."""
        text = PLAYBOOK.replace("CANARY", self.canary)
        registered = await self.post(
            "/api/catalog/register", content=text, headers={"Content-Type": "text/yaml"}
        )
        secret = {"name": "shared", "kind": "generic", "data": {"secret": self.canary}}
        await self.post("/api/credentials", json=secret)
        hook = {"name": "shared", "path": PATH, "secret": "shared", "into": f"m_{self.canary}"}
        await self.post("/api/hooks", json=hook)
        every = {"name": "shared", "path": PATH, "every": "1000h", "payload": {"x": self.canary}}
        await self.post("/api/schedules", json=every)
        stored = await self.http.put(f"/api/state/value/hand/{PATH}", json={"value": self.canary})
        assert stored.status_code == 200, stored.text
        token = await self.post("/api/tokens", json={"name": self.canary, "roles": ["viewer"]})
        self.ids = {
            "hash": registered["hash"],
            "name": "shared",
            "path": PATH,
            "token_id": token["token_id"],
            "step": "each",
            "tenant": self.name,
        }
        await self.run()

    async def run(self, key: str | None = None) -> str:
        """Run an execution to its end. Returns its id."""
        headers = {} if key is None else {"Idempotency-Key": key}
        started = await self.post("/api/execute", json={"path": PATH}, headers=headers)
        execution_id = str(started["execution_id"])
        await self.wait_for(execution_id, "signal.waiting", "step.enter")
        sent = await self.http.post(
            f"/api/executions/{execution_id}/signals/go", json={"payload": self.canary}
        )
        assert sent.status_code in (200, 202), sent.text
        await self.wait_for(execution_id, "end")
        self.ids["execution_id"] = execution_id
        return execution_id

    async def wait_for(self, execution_id: str, *names: str) -> None:
        async with self.http.stream("GET", f"/api/executions/{execution_id}/stream") as stream:
            assert stream.status_code == 200
            async for name, _, _ in read_messages(stream):
                if name in names:
                    return

    async def post(self, path: str, **more: Any) -> dict[str, Any]:
        answer = await self.http.post(path, **more)
        assert answer.status_code in (200, 201, 202), answer.text
        found: dict[str, Any] = answer.json()
        return found


def open_files(blobs: BlobServers, folder: Path, tenant: StoreTenant) -> ResultRouter:
    tier = FileTier(folder / "results", tenant=tenant)
    return ResultRouter(blobs, LargeStore(tier, Staging(folder / "staging")))


@asynccontextmanager
async def open_two_tenants(
    home: Path, *, work: bool = True
) -> AsyncIterator[tuple[ApiServer, dict[str, TenantUser]]]:
    """A server with two tenants, each with a worker. The workers have the same name."""
    ports = make_memory_ports(home=home)
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(
            run_api_server(ports, open_store=lambda blobs: open_files(blobs, home, StoreTenant()))
        )
        users: dict[str, TenantUser] = {}
        for number, name in enumerate(NAMES):
            await here.node.services.tenants.create(LOCAL_IDENTITY, name)
            user = await make_user(here, name, f"canary{name}{number}x")
            stack.push_async_callback(user.http.aclose)
            stack.push_async_callback(user.channel.close)
            if work:
                store = open_files(user.channel, home, StoreTenant())
                running = run_worker(here, "same", store=store, token=user.worker_token)
                await stack.enter_async_context(running)
            users[name] = user
        yield here, users


async def make_user(here: ApiServer, name: str, canary: str) -> TenantUser:
    token = await here.make_token("admin", tenant=name)
    worker_token = await here.make_token("worker", tenant=name)
    http = httpx.AsyncClient(
        base_url=here.url,
        timeout=HANG_LIMIT_S,
        trust_env=False,
        headers={"Authorization": f"Bearer {token}"},
    )
    return TenantUser(name, canary, http, token, worker_token, here.open_channel(worker_token))


async def read_some(http: httpx.AsyncClient, method: str, path: str, **more: Any) -> httpx.Response:
    """The answer; of a stream without an end, what comes first."""
    request = http.build_request(method, path, **more)
    answer = await http.send(request, stream=True)
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(0.2):
                async for part in answer.aiter_raw():
                    parts.append(part)
        except TimeoutError:
            pass
        await answer.aclose()
        return httpx.Response(answer.status_code, content=b"".join(parts))
    await answer.aread()
    await answer.aclose()
    return answer
