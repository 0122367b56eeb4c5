"""The channel to the servers over HTTP.

Connections are reused. If a server does not answer, the next one is used.
"""

from collections.abc import Callable, Sequence
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
    NotPermitted,
    OutcomeUnknown,
    Unavailable,
    Unreached,
)
from noetl.model.exchange import MAX_EXCHANGE_BYTES, ExchangeReply, ExchangeRequest
from noetl.model.ids import ExecutionId, RefId
from noetl.model.messages import StoredRef
from noetl.model.reference import Reference
from noetl.worker.wire import FindTls, NotConnected, ResponseLost, ServerConnections, WireResponse

EXCHANGE_PATH = "/api/worker/exchange"
LOGS_PATH = "/api/worker/logs"
UNAUTHORIZED = 401
HTTP_TIMEOUT_S = 5.0  # seconds for an answer, beyond the time that the server may wait
_reply = msgspec.json.Decoder(ExchangeReply)
_parts = msgspec.json.Decoder(list[AddPart])
_addresses = msgspec.json.Decoder(list[str])
_fields = msgspec.json.Decoder(dict[str, Any])


FindToken = Callable[[str], str | None]  # the token for the server at this address


class HttpChannel:
    """`Channel` over HTTP. It uses the same server as long as that answers."""

    def __init__(
        self,
        servers: Sequence[str],
        find_token: FindToken | None = None,
        find_tls: FindTls | None = None,
    ) -> None:
        """`find_token` gives the token for a server. It is asked again when a token is refused.

        `find_tls` gives the TLS for a server, whenever a connection is made.
        """
        if not servers:
            raise InvalidInput(
                "no server to talk to", hint="NOETL_SERVER_URL=http://127.0.0.1:8082"
            )
        self._wires = [ServerConnections(server, find_tls) for server in servers]
        self._find_token = find_token
        self._tokens: dict[str, str] = {}  # by server
        self._current = 0

    async def close(self) -> None:
        for wire in self._wires:
            wire.close()

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        answer = await self._request_any(
            "POST", EXCHANGE_PATH, encode_fitting(request), wait=request.wait / 1e6
        )
        try:
            return _reply.decode(answer)
        except msgspec.DecodeError as error:
            raise OutcomeUnknown(f"the server's answer is not an exchange: {error}") from error

    async def fetch_playbook(self, content: str) -> str:
        answer = await self._request_any("GET", f"/api/worker/playbooks/{quote(content, safe='')}")
        return answer.decode()

    async def list_manifest_parts(self, manifest: str) -> list[AddPart]:
        answer = await self._request_any("GET", f"/api/worker/manifests/{quote(manifest, safe='')}")
        try:
            return _parts.decode(answer)
        except msgspec.DecodeError as error:
            raise Unavailable(f"the server's answer is not a manifest: {error}") from error

    async def payload(self, ref_id: RefId, uri: str) -> bytes | None:
        path = f"/api/worker/payloads/{quote(ref_id, safe='')}?uri={quote(uri, safe='')}"
        try:
            return await self._request_any("GET", path)
        except Expired:
            raise
        except NotFound:
            return None

    async def put_payload(self, reference: Reference, payload: bytes) -> None:
        query = quote(codec.encode(reference), safe="")
        path = f"/api/worker/payloads?reference={query}"
        await self._request_any("PUT", path, payload, kind="application/octet-stream")

    async def find_orphans(self, execution_id: ExecutionId, uris: list[str]) -> list[str]:
        path = f"/api/worker/orphans/{quote(execution_id, safe='')}"
        answer = await self._request_any("POST", path, codec.encode(uris))
        try:
            return _addresses.decode(answer)
        except msgspec.DecodeError as error:
            raise Unavailable(f"the server's answer is not a list of addresses: {error}") from error

    async def read_credential(self, name: str) -> dict[str, Any]:
        answer = await self._request_any("GET", f"/api/worker/credentials/{quote(name, safe='')}")
        try:
            return _fields.decode(answer)
        except msgspec.DecodeError:  # its message may quote the secret
            raise Unavailable(f"the server's answer is not the credential {name!r}") from None

    async def put_logs(self, parts: tuple[StoredRef, ...]) -> None:
        await self._request_any("POST", LOGS_PATH, codec.encode(parts))

    async def _request_any(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        wait: float = 0,
        kind: str = "application/json",
    ) -> bytes:
        """Ask the server that answered last, or the next one that can be connected to.

        A request that was sent is not sent to another server: the worker decides whether to repeat
        it.
        """
        for _ in self._wires:
            wire = self._wires[self._current]
            try:
                answer = await self._send_with_token(
                    wire, method, path, body, wait + HTTP_TIMEOUT_S, kind
                )
            except NotConnected:
                self._use_next_server()
                continue
            except ResponseLost as error:
                self._use_next_server()
                raise OutcomeUnknown(f"{describe_place(wire, path)}: {error}") from error
            if answer.status == 200:
                return answer.body
            if answer.status >= 500:
                self._use_next_server()
            raise error_from_response(answer, describe_place(wire, path))
        servers = ", ".join(wire.url for wire in self._wires)
        raise Unreached(f"no server answers at {servers}", hint="is it running? noetl server start")

    async def _send_with_token(
        self,
        wire: ServerConnections,
        method: str,
        path: str,
        body: bytes,
        patience: float,
        kind: str,
    ) -> WireResponse:
        """Send a request with the token for the server.

        If the token is refused and there is another one by now, it is sent again: a server makes
        the token of its home while it starts, when a worker may have connected already.
        """
        token = self._get_token(wire.url)
        answer = await wire.send_request(method, path, body, patience, kind, token)
        if answer.status != UNAUTHORIZED:
            return answer
        self._tokens.pop(wire.url, None)
        newer = self._get_token(wire.url)
        if newer is None or newer == token:
            return answer
        return await wire.send_request(method, path, body, patience, kind, newer)

    def _get_token(self, url: str) -> str | None:
        if self._find_token is None:
            return None
        token = self._tokens.get(url)
        if token is None:
            token = self._find_token(url)
        if token is not None:
            self._tokens[url] = token
        return token

    def _use_next_server(self) -> None:
        self._current = (self._current + 1) % len(self._wires)


def describe_place(wire: ServerConnections, path: str) -> str:
    return wire.url + path.partition("?")[0]


def error_from_response(answer: WireResponse, where: str) -> NoetlError:
    """The error that a response with another status than 200 stands for."""
    detail, hint = _read_problem(answer)
    message = f"{where}: {answer.status} {detail}"
    match answer.status:
        case 401:  # nothing was done; the token may be there when it is tried again
            return Unreached(message, hint=hint)
        case 429:  # nothing was done; it is tried again after a while
            return Unreached(message, hint=hint)
        case 403:
            return NotPermitted(message, hint=hint)
        case 404:
            return NotFound(message, hint=hint)
        case 410:
            return Expired(detail, hint=hint)
        case 409:
            return Conflict(message, hint=hint)
        case 503:
            return Unavailable(message, hint=hint)
        case status if status < 500:
            return InvalidInput(message, hint=hint)
        case _:
            return OutcomeUnknown(message, hint=hint)


def encode_fitting(request: ExchangeRequest) -> bytes:
    """The request with as many reports as fit, in their order.

    The others stay unacknowledged, so they go with the next exchange.
    """
    data = codec.encode(request)
    while len(data) > MAX_EXCHANGE_BYTES and len(request.reports) > 1:
        half = len(request.reports) // 2
        request = msgspec.structs.replace(request, reports=request.reports[:half])
        data = codec.encode(request)
    return data


def _read_problem(answer: WireResponse) -> tuple[str, str | None]:
    """The detail and the hint of a problem response. Other responses have none."""
    if not answer.kind.startswith("application/problem+json"):
        return "", None
    try:
        problem = msgspec.json.decode(answer.body, type=dict[str, object])
    except msgspec.DecodeError:
        return "", None
    hint = problem.get("hint")
    if not isinstance(hint, str):
        hint = None
    return str(problem.get("detail", "")), hint
