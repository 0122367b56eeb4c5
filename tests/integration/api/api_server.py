"""A server on a free port of the loopback interface, over memory twins, and clients and workers that speak real HTTP to it."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from noetl.accounts.memory import TokensMemory
from noetl.accounts.tenants_memory import TenantsMemory
from noetl.accounts.users_memory import UsersMemory
from noetl.audit.memory import AuditMemory
from noetl.bus.memory import BusMemory
from noetl.catalog.memory import CatalogMemory, VaultMemory
from noetl.leases.memory import LeasesMemory
from noetl.log.memory import make_memory_stores
from noetl.log.tables import MemoryDatabase
from noetl.model.errors import Conflict
from noetl.model.identity import LOCAL_IDENTITY
from noetl.model.ids import Tenant
from noetl.pipeline.output.reading import StoredResults
from noetl.results.port import ResultStore
from noetl.results.tiers.kv import BlobServers
from noetl.results.tiers.memory import ResultsMemory
from noetl.runtime.home import open_home
from noetl.runtime.listening import format_address, open_listener
from noetl.runtime.node import Node, ServerPorts, assemble_node
from noetl.runtime.result_reading import TenantPayloads
from noetl.runtime.server_node import make_server_ports
from noetl.runtime.serving import serve
from noetl.server.credentials.keys import KeyFile
from noetl.server.node import Server
from noetl.server.settings import ServerSettings
from noetl.shard_rows import make_shard_rows
from noetl.tools import registry
from noetl.triggers.memory import HooksMemory, SchedulesMemory
from noetl.worker.credentials import StoredCredentials
from noetl.worker.http import HttpChannel
from noetl.worker.settings import WorkerSettings
from noetl.worker.spool import MemorySpool
from noetl.worker.worker import Worker
from tests.waiting import HANG_LIMIT_S

SHARDS = 4
NOOP = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: simple, path: tests/simple}
workload: {n: 1}
workflow:
  - step: one
    tool: {kind: noop}
    set: {ctx.n: "{{ workload.n }}"}
    next: two
  - step: two
    tool: {kind: noop}
"""
WAITS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits, path: tests/waits}
workflow:
  - step: one
    tool: {kind: wait, signal: go}
    next: two
  - step: two
    tool: {kind: noop}
"""


TOKENS: dict[str, str] = {}  # by the address of a server


class WallClock:
    def now(self) -> int:
        return time.time_ns() // 1000


def make_memory_ports(shards: int = SHARDS, home: Path = Path("/dev/null")) -> ServerPorts:
    """The key file is made when something is first stored; a test that stores gives a temporary folder."""
    rows, clock = make_shard_rows(shards), WallClock()
    stores = make_memory_stores(MemoryDatabase(rows, clock))
    users = UsersMemory(clock)
    return ServerPorts(
        stores, LeasesMemory(rows, clock), BusMemory(), CatalogMemory(), clock,
        VaultMemory(clock), KeyFile(home), SchedulesMemory(stores.log, stores.inbox, clock), HooksMemory(clock),
        TokensMemory(clock, users), TenantsMemory(clock), users, AuditMemory(clock),
    )  # fmt: skip


@dataclass
class ApiServer:
    node: Node
    url: str
    http: httpx.AsyncClient
    stop: asyncio.Event
    serving: "asyncio.Task[None]"
    token: str  # of an administrator who is also a worker, so that one client may try every route

    async def make_token(self, *roles: str, **more: Any) -> str:
        """The text of a new token with these roles."""
        made = await self.node.services.accounts.create_token(LOCAL_IDENTITY, "test", roles, **more)
        return made.token

    async def make_foreign_header(self) -> dict[str, str]:
        """The header of an administrator of another tenant."""
        return {"Authorization": f"Bearer {await self.make_foreign_token('admin')}"}

    async def make_foreign_token(self, *roles: str, tenant: str = "mallory") -> str:
        """The text of a token of another tenant, which is made if it is not there."""
        with suppress(Conflict):
            await self.node.services.tenants.create(LOCAL_IDENTITY, tenant)
        return await self.make_token(*roles, tenant=tenant)

    def open_channel(self, token: str | None = None) -> HttpChannel:
        return HttpChannel([self.url], TOKENS.get if token is None else lambda url: token)

    async def register(self, text: str) -> None:
        answer = await self.http.post(
            "/api/catalog/register", content=text, headers={"Content-Type": "text/yaml"}
        )
        assert answer.status_code in (200, 201), answer.text

    async def start(self, path: str = "tests/simple", **body: Any) -> str:
        answer = await self.http.post("/api/execute", json={"path": path, **body})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["execution_id"])

    async def get(self, path: str, /, **params: Any) -> Any:
        answer = await self.http.get(path, params=params or None)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def wait_for_event(self, execution_id: str, event: str) -> None:
        """Returns when an event of that type is in its stream."""
        async with self.http.stream("GET", f"/api/executions/{execution_id}/stream") as stream:
            async for name, _, _ in read_messages(stream):
                if name == event:
                    return

    async def wait_for_end(self, execution_id: str) -> dict[str, Any]:
        """Its row once it has ended: seen through the stream of its events."""
        last = 0
        async with self.http.stream("GET", f"/api/executions/{execution_id}/stream") as stream:
            async for name, seq, _ in read_messages(stream):
                last = seq or last
                if name == "end":
                    break
        return dict(await self.get(f"/api/executions/{execution_id}", min_seq=last))

    async def leave(self) -> None:
        self.stop.set()
        await self.serving


async def read_messages(stream: httpx.Response) -> AsyncIterator[tuple[str, int | None, Any]]:
    """Messages of an event stream: name, id, data."""
    name, seq, data = "", None, None
    async for line in stream.aiter_lines():
        field, _, value = line.partition(": ")
        match field:
            case "event":
                name = value
            case "id":
                seq = int(value)
            case "data":
                data = msgspec.json.decode(value)
            case "" if name:
                yield name, seq, data
                name, seq, data = "", None, None


@asynccontextmanager
async def run_api_server(
    ports: ServerPorts | None = None,
    name: str = "s1",
    several: bool = False,
    store: ResultStore | None = None,
    open_store: Callable[[BlobServers], ResultStore] | None = None,
    host: str = "127.0.0.1",
    listener: socket.socket | None = None,
    tls: ssl.SSLContext | None = None,
    **settings: Any,
) -> AsyncIterator[ApiServer]:
    """With a store it can show data; `open_store` makes one that keeps small payloads with the server."""
    opened = listener or open_listener(host, port=0)
    url = format_address(opened, "http" if tls is None else "https")
    told = ServerSettings(name=name, address=url, shards=SHARDS, **settings)

    def open_results(server: Server, tenant: Tenant) -> StoredResults:
        payloads = TenantPayloads(server, tenant)
        found = store if open_store is None else open_store(payloads)
        assert found is not None
        return StoredResults(found, payloads.list_manifest_parts)

    has_store = store is not None or open_store is not None
    node = assemble_node(
        ports or make_memory_ports(), told, open_results=open_results if has_store else None
    )
    stop = asyncio.Event()
    serving = asyncio.ensure_future(serve(node, opened, several=several, stop=stop, tls=tls))
    accounts = node.services.accounts
    made = await accounts.create_token(LOCAL_IDENTITY, "local", ["admin", "worker"])
    TOKENS[url] = made.token
    try:
        async with httpx.AsyncClient(
            base_url=url,
            timeout=HANG_LIMIT_S,
            trust_env=False,
            verify=False,
            headers={"Authorization": f"Bearer {made.token}"},
        ) as http:
            yield ApiServer(node, url, http, stop, serving, made.token)
            stop.set()
    finally:
        stop.set()
        await serving


@asynccontextmanager
async def run_api_server_on_postgres(
    dsn: str, home: Path, monkeypatch: pytest.MonkeyPatch, name: str = "s1", several: bool = False
) -> AsyncIterator[ApiServer]:
    """A server with connections of its own to this database."""
    monkeypatch.setenv("NOETL_DB_URL", dsn)
    monkeypatch.setenv("NOETL_SHARD_COUNT", str(SHARDS))
    async with (
        open_home(home) as here,
        run_api_server(make_server_ports(here), name, several) as made,
    ):
        yield made


@asynccontextmanager
async def run_worker(
    here: ApiServer,
    name: str = "w1",
    slots: int = 4,
    store: ResultStore | None = None,
    token: str | None = None,
    incarnation: str = "1",
) -> AsyncIterator[Worker]:
    channel = here.open_channel(token)
    settings = WorkerSettings(worker_id=name, incarnation=incarnation, slots=slots)
    stored = StoredCredentials(channel)
    worker = Worker(
        channel,
        store or ResultsMemory(),
        registry.make_registry(),
        WallClock(),
        MemorySpool(),
        settings,
        credentials=stored,
    )
    running = asyncio.ensure_future(worker.run())
    try:
        yield worker
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await channel.close()
