"""Runs a server and a worker in one process."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from msgspec.structs import replace

from noetl.model.decisions import AddPart
from noetl.model.exchange import ExchangeReply, ExchangeRequest
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, RefId
from noetl.model.messages import StoredRef
from noetl.model.reference import Reference
from noetl.runtime.egress import make_local_guard
from noetl.runtime.server import OpenServer
from noetl.runtime.serving import serve
from noetl.runtime.tools import add_usual_pools, make_extra_tools
from noetl.runtime.worker import WorkerOptions, make_options, serve_worker
from noetl.server.node import Server
from noetl.server.workers.presence import Presence
from noetl.settings import (
    HomeSettings,
    ShardSettings,
    StorageSettings,
    WorkerProcessSettings,
    read_settings,
)


class PresentChannel:
    """The channel of a worker to the server of its process. The worker is listed like others."""

    def __init__(self, server: Server, presence: Presence) -> None:
        self._server = server
        self._presence = presence

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        self._presence.note_request(DEFAULT_TENANT, request, None)
        return await self._server.exchange(request)

    async def fetch_playbook(self, content: str) -> str:
        return await self._server.fetch_playbook(content)

    async def list_manifest_parts(self, manifest: str) -> list[AddPart]:
        return await self._server.list_manifest_parts(manifest)

    async def payload(self, ref_id: RefId, uri: str) -> bytes | None:
        return await self._server.payload(ref_id, uri)

    async def put_payload(self, reference: Reference, payload: bytes) -> None:
        await self._server.put_payload(reference, payload)

    async def find_orphans(self, execution_id: ExecutionId, uris: list[str]) -> list[str]:
        return await self._server.find_orphans(execution_id, uris)

    async def read_credential(self, name: str) -> dict[str, Any]:
        return await self._server.read_credential(name)

    async def put_logs(self, parts: tuple[StoredRef, ...]) -> None:
        await self._server.put_logs(parts)


async def run_server_and_worker(opened: OpenServer, background: Coroutine[Any, Any, None]) -> None:
    """Run a server, a worker that calls it in this process, and `background`, until one of them ends.

    Raises the error of the one that has failed.
    """
    stop = opened.stop
    worker_left = asyncio.Event()  # the server runs until the worker has sent its last reports
    serving = asyncio.ensure_future(
        serve(opened.node, opened.listener, several=True, stop=worker_left, tls=opened.tls)
    )
    channel = PresentChannel(opened.node.server, opened.node.presence)
    working = asyncio.ensure_future(serve_worker(channel, _make_worker_options(opened), stop))
    watching = asyncio.ensure_future(background)
    try:
        await asyncio.wait((serving, working, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.set()
        watching.cancel()
        await asyncio.wait((working, watching))
        worker_left.set()
        await asyncio.wait((serving,))
    for task in (serving, working, watching):
        if not task.cancelled():
            task.result()


def _make_worker_options(opened: OpenServer) -> WorkerOptions:
    options = make_options(
        read_settings(HomeSettings).home_path,
        read_settings(WorkerProcessSettings),
        read_settings(ShardSettings),
        read_settings(StorageSettings),
    )
    return replace(
        options,
        pools=add_usual_pools(options.pools),
        find_data=lambda: opened.data,
        tools=make_extra_tools(options.home),
        guard=make_local_guard(options.home, opened.address),
    )
