"""The way to the servers over HTTP. Connections are reused; a server that does not answer is left for the next one."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from noetl.model import codec
from noetl.model.decisions import AddPart
from noetl.model.errors import (
    Conflict,
    Expired,
    InvalidInput,
    NoetlError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    Unreached,
)
from noetl.model.exchange import EXCHANGE_LIMIT, ExchangeReply, ExchangeRequest
from noetl.model.ids import ExecutionId, RefId
from noetl.model.messages import StoredRef
from noetl.model.reference import Reference
from noetl.worker.wire import BrokenOff, NotConnected, Wire, WireResponse

EXCHANGE = "/api/worker/exchange"
LOGS = "/api/worker/logs"
PATIENCE = 5.0  # seconds for an answer, beyond what the server was allowed to wait
_reply = msgspec.json.Decoder(ExchangeReply)
_parts = msgspec.json.Decoder(list[AddPart])
_addresses = msgspec.json.Decoder(list[str])
_fields = msgspec.json.Decoder(dict[str, Any])


class HttpChannel:
    """`Channel` over HTTP. It stays with a server while that answers."""

    def __init__(self, servers: Sequence[str]) -> None:
        if not servers:
            raise InvalidInput(
                "no server to talk to", hint="NOETL_SERVER_URL=http://127.0.0.1:8082"
            )
        self._wires = [Wire(server) for server in servers]
        self._current = 0

    async def close(self) -> None:
        for wire in self._wires:
            wire.close()

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        answer = await self._ask("POST", EXCHANGE, fitted(request), wait=request.wait / 1e6)
        try:
            return _reply.decode(answer)
        except msgspec.DecodeError as error:
            raise OutcomeUnknown(f"the server's answer is not an exchange: {error}") from error

    async def playbook(self, content: str) -> str:
        return (await self._ask("GET", f"/api/worker/playbooks/{quote(content, safe='')}")).decode()

    async def manifest(self, manifest: str) -> list[AddPart]:
        answer = await self._ask("GET", f"/api/worker/manifests/{quote(manifest, safe='')}")
        try:
            return _parts.decode(answer)
        except msgspec.DecodeError as error:
            raise Unavailable(f"the server's answer is not a manifest: {error}") from error

    async def payload(self, ref_id: RefId, uri: str) -> bytes | None:
        try:
            return await self._ask(
                "GET", f"/api/worker/payloads/{quote(ref_id, safe='')}?uri={quote(uri, safe='')}"
            )
        except Expired:
            raise
        except NotFound:
            return None

    async def put_payload(self, reference: Reference, payload: bytes) -> None:
        named = quote(codec.encode(reference), safe="")
        await self._ask(
            "PUT",
            f"/api/worker/payloads?reference={named}",
            payload,
            kind="application/octet-stream",
        )

    async def orphans(self, execution_id: ExecutionId, uris: list[str]) -> list[str]:
        answer = await self._ask(
            "POST", f"/api/worker/orphans/{quote(execution_id, safe='')}", codec.encode(uris)
        )
        try:
            return _addresses.decode(answer)
        except msgspec.DecodeError as error:
            raise Unavailable(f"the server's answer is not a list of addresses: {error}") from error

    async def credential(self, name: str) -> dict[str, Any]:
        answer = await self._ask("GET", f"/api/worker/credentials/{quote(name, safe='')}")
        try:
            return _fields.decode(answer)
        except msgspec.DecodeError:  # without its words: they might repeat what was sent
            raise Unavailable(f"the server's answer is not the credential {name!r}") from None

    async def put_logs(self, parts: tuple[StoredRef, ...]) -> None:
        await self._ask("POST", LOGS, codec.encode(parts))

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        wait: float = 0,
        kind: str = "application/json",
    ) -> bytes:
        """At the server that answered last, or the next one that can be reached. Once sent, it is not sent elsewhere: that is
        for the worker to decide."""
        for _ in self._wires:
            wire = self._wires[self._current]
            try:
                answer = await wire.ask(method, path, body, wait + PATIENCE, kind)
            except NotConnected:
                self._turn()
                continue
            except BrokenOff as error:
                self._turn()
                raise OutcomeUnknown(f"{place(wire, path)}: {error}") from error
            if answer.status == 200:
                return answer.body
            if answer.status >= 500:
                self._turn()
            raise refused(answer, place(wire, path))
        servers = ", ".join(wire.url for wire in self._wires)
        raise Unreached(f"no server answers at {servers}", hint="is it running? noetl server start")

    def _turn(self) -> None:
        self._current = (self._current + 1) % len(self._wires)


def place(wire: Wire, path: str) -> str:
    return wire.url + path.partition("?")[0]


def refused(answer: WireResponse, where: str) -> NoetlError:
    detail, hint = _told(answer)
    said = f"{where}: {answer.status} {detail}"
    match answer.status:
        case 404:
            return NotFound(said, hint=hint)
        case 410:
            return Expired(detail, hint=hint)
        case 409:
            return Conflict(said, hint=hint)
        case 503:
            return Unavailable(said, hint=hint)
        case status if status < 500:
            return InvalidInput(said, hint=hint)
        case _:
            return OutcomeUnknown(said, hint=hint)


def fitted(request: ExchangeRequest) -> bytes:
    """As many reports as fit; the others are not acknowledged and go with the next exchange. The order is kept."""
    data = codec.encode(request)
    while len(data) > EXCHANGE_LIMIT and len(request.reports) > 1:
        request = msgspec.structs.replace(
            request, reports=request.reports[: len(request.reports) // 2]
        )
        data = codec.encode(request)
    return data


def _told(answer: WireResponse) -> tuple[str, str | None]:
    """What a problem says; any other answer is not worth repeating."""
    if not answer.kind.startswith("application/problem+json"):
        return "", None
    try:
        told = msgspec.json.decode(answer.body, type=dict[str, object])
    except msgspec.DecodeError:
        return "", None
    hint = told.get("hint")
    return str(told.get("detail", "")), hint if isinstance(hint, str) else None
