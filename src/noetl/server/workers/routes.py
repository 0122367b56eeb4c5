"""The routes for workers, with msgspec and plain Starlette: every command passes through them."""

import asyncio
import re
import time
from collections.abc import Iterable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from noetl.metrics import Metrics
from noetl.model import codec
from noetl.model.errors import InvalidInput, NoetlError, NotFound, NotPermitted, Unavailable
from noetl.model.exchange import MAX_EXCHANGE_BYTES, ExchangeReply, ExchangeRequest
from noetl.model.identity import Identity, Permission
from noetl.model.ids import ExecutionId, Micros, RefId, Tenant
from noetl.model.messages import Report, StoredRef
from noetl.model.reference import Reference
from noetl.server.http.callers import IDENTITY
from noetl.server.http.guard import EXCHANGE_PATH
from noetl.server.http.parameters import EXECUTION_ID
from noetl.server.http.problems import make_error_problem
from noetl.server.http.routing import HttpRouter
from noetl.server.node import Server
from noetl.server.workers.presence import Presence

MAX_WAIT_US: Micros = 30_000_000
MAX_NAME_CHARS = 200
MAX_REASON_CHARS = 500  # characters of a decoder's message
MAX_WORKER_POOLS = 64
MAX_FREE_PLACES = 100_000
MAX_ATTEMPT = (1 << 31) - 1
BYTES_TYPE = "application/octet-stream"
_SNOWFLAKE = re.compile(EXECUTION_ID)
_references = msgspec.json.Decoder(Reference)
_addresses = msgspec.json.Decoder(list[str])
_logs = msgspec.json.Decoder(tuple[StoredRef, ...])
_requests = msgspec.json.Decoder(ExchangeRequest)


class WorkerRoutes:
    """The routes for workers. Tracks waiting exchanges, so that `close` can end them."""

    def __init__(self, server: Server, presence: Presence, metrics: Metrics) -> None:
        self._server = server
        self._presence = presence
        self._talk = metrics.exchange_ms.labels("talk")
        self._poll = metrics.exchange_ms.labels("poll")
        self._waiting: set[asyncio.Task[ExchangeReply]] = set()
        self._closing = False

    def close(self) -> None:
        """End all polls. Another server sends again what they may have been given. Exchanges with
        reports are still answered."""
        self._closing = True
        self._presence.close()
        for task in self._waiting:
            task.cancel()

    async def exchange(self, http: Request) -> Response:
        began = time.perf_counter()
        client = http.client
        connection = None if client is None else (client.host, client.port)
        try:
            request = read_exchange(await http.body())
            identity: Identity = http.scope[IDENTITY]
            tenant = identity.tenant
            _check_pools(identity, request)
            self._presence.note_request(tenant, request, connection)
            if request.wait and not request.reports:
                reply = await self._run_poll(tenant, request, http)
            else:
                reply = await self._server.exchange(request, tenant)
        except NoetlError as error:
            return make_error_problem(error)
        histogram = self._poll if request.wait else self._talk
        histogram.observe((time.perf_counter() - began) * 1000)
        return _make_json_response(encode_reply(reply))

    async def _run_poll(
        self, tenant: Tenant, request: ExchangeRequest, http: Request
    ) -> ExchangeReply:
        """Run a poll. Raises `Unavailable` if the worker disconnects or the server ends before its
        reply is complete."""
        if self._closing:
            raise Unavailable("this server is going down", hint="another one answers")
        task = asyncio.ensure_future(self._server.exchange(request, tenant))
        leaving = asyncio.ensure_future(http.receive())
        self._waiting.add(task)
        try:
            await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.discard(task)
            leaving.cancel()
            task.cancel()
            await asyncio.wait((task, leaving))
        if task.cancelled():
            raise Unavailable(
                "the exchange was ended", hint="what it may have brought is sent again"
            )
        return task.result()

    async def playbook(self, http: Request) -> Response:
        try:
            text = await self._server.fetch_playbook(http.path_params["hash"], _get_tenant(http))
        except NoetlError as error:
            return make_error_problem(error)
        return Response(text, media_type="text/yaml")

    async def manifest(self, http: Request) -> Response:
        try:
            parts = await self._server.list_manifest_parts(
                http.path_params["id"], _get_tenant(http)
            )
        except NoetlError as error:
            return make_error_problem(error)
        return _make_json_response(codec.encode(parts))

    async def payload(self, http: Request) -> Response:
        """The bytes of a small payload; 404 if it is not here."""
        ref_id = RefId(http.path_params["ref_id"])
        try:
            uri = http.query_params.get("uri", "")
            payload = await self._server.payload(ref_id, uri, _get_tenant(http))
            if payload is None:
                raise NotFound(f"no payload {ref_id}")
        except NoetlError as error:
            return make_error_problem(error)
        return Response(payload, media_type=BYTES_TYPE)

    async def put_payload(self, http: Request) -> Response:
        """Store the body under the reference in the query. It is durable when it is answered."""
        try:
            reference = _read_reference(http.query_params.get("reference", ""))
            await self._server.put_payload(reference, await http.body(), _get_tenant(http))
        except NoetlError as error:
            return make_error_problem(error)
        return _make_json_response(b"{}")

    async def orphans(self, http: Request) -> Response:
        """Those addresses of the body that the execution does not name and never will."""
        execution_id = ExecutionId(http.path_params["execution_id"])
        try:
            uris = _read_addresses(await http.body())
            orphans = await self._server.find_orphans(execution_id, uris, _get_tenant(http))
        except NoetlError as error:
            return make_error_problem(error)
        return _make_json_response(codec.encode(orphans))

    async def credential(self, http: Request) -> Response:
        """The fields of a credential in clear text. No other route shows them."""
        try:
            fields = await self._server.read_credential(http.path_params["name"], _get_tenant(http))
        except NoetlError as error:
            return make_error_problem(error)
        return _make_json_response(codec.encode(fields))

    async def put_logs(self, http: Request) -> Response:
        """Store parts of step logs. They are durable when it is answered."""
        try:
            await self._server.put_logs(_read_logs(await http.body()), _get_tenant(http))
        except NoetlError as error:
            return make_error_problem(error)
        return _make_json_response(b"{}")

    def add_routes(self, router: HttpRouter) -> None:
        read, work = Permission.READ, Permission.WORK
        router.add_plain("POST", EXCHANGE_PATH, self.exchange, work)
        router.add_plain("GET", "/api/worker/playbooks/{hash}", self.playbook, work)
        # Clients read results by the same routes as workers.
        router.add_plain("GET", "/api/worker/manifests/{id}", self.manifest, work, read)
        router.add_plain("GET", "/api/worker/payloads/{ref_id}", self.payload, work, read)
        router.add_plain("PUT", "/api/worker/payloads", self.put_payload, work)
        router.add_plain("POST", "/api/worker/orphans/{execution_id}", self.orphans, work)
        router.add_plain("GET", "/api/worker/credentials/{name}", self.credential, work)
        router.add_plain("POST", "/api/worker/logs", self.put_logs, work)


def _get_tenant(http: Request) -> Tenant:
    """The tenant of the caller: never one that the request names."""
    identity: Identity = http.scope[IDENTITY]
    return identity.tenant


def _check_pools(identity: Identity, request: ExchangeRequest) -> None:
    """Refuse a worker that asks for commands of pools that its token is not for."""
    if identity.pools is None:
        return
    foreign = sorted(set(request.pools) - identity.pools)
    if foreign:
        raise NotPermitted(
            f"the token of {identity.name} is not for the pool {foreign[0]}",
            hint=f"it is for {', '.join(sorted(identity.pools))}: noetl worker start --pool NAME",
        )


def read_exchange(body: bytes) -> ExchangeRequest:
    """Decode and check an exchange. Raises `InvalidInput`."""
    try:
        request = _requests.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise _make_exchange_error(str(error)[:MAX_REASON_CHARS]) from error
    names = (request.worker, request.incarnation, *request.pools)
    if not all(map(_is_name, names)):
        raise _make_exchange_error("a name is empty or too long")
    if not 0 <= request.free <= MAX_FREE_PLACES:
        raise _make_exchange_error(f"free is from 0 to {MAX_FREE_PLACES}")
    if len(request.pools) > MAX_WORKER_POOLS:
        raise _make_exchange_error(f"a worker takes from at most {MAX_WORKER_POOLS} pools")
    for lease in request.held:
        _check_attempt(lease.command_id, lease.attempt)
    for progress in request.progress:
        _check_attempt(progress.held.command_id, progress.held.attempt)
    for report in request.reports:
        _check_report(report)
    _check_stored(request.logs)
    wait = min(max(request.wait, 0), MAX_WAIT_US)
    return msgspec.structs.replace(request, wait=wait)


def _make_exchange_error(why: str) -> InvalidInput:
    return InvalidInput(f"not an exchange: {why}", hint="is the worker of another version?")


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_CHARS and "\0" not in name


def _is_id(written: str) -> bool:
    return _SNOWFLAKE.fullmatch(written) is not None and int(written) < 1 << 63


def _check_attempt(command_id: str, attempt: int) -> None:
    if not _is_name(command_id):
        raise _make_exchange_error("the id of a command is empty or too long")
    if not 0 < attempt <= MAX_ATTEMPT:
        raise _make_exchange_error(f"attempts count from 1 to {MAX_ATTEMPT}, not {attempt}")


def _check_report(report: Report) -> None:
    if not _is_id(report.execution_id):
        raise _make_exchange_error("a report names no execution")
    _check_attempt(report.command_id, report.attempt)
    if not _is_name(report.worker):
        raise _make_exchange_error("a report names no worker")
    _check_stored(report.refs)


def _check_stored(stored: Iterable[StoredRef]) -> None:
    for ref in stored:
        ids = [ref.reference.ref_id, *ref.inputs]
        if ref.parent is not None:
            ids.append(ref.parent)
        if not all(map(_is_id, ids)):
            raise _make_exchange_error("the id of a reference is not a number")
        _check_reference(ref.reference)


def _check_reference(reference: Reference) -> None:
    for count in (reference.bytes, reference.rows):
        if count is not None and not 0 <= count < 1 << 63:
            raise InvalidInput("not a reference: bytes and rows are counts")


def _read_reference(text: str) -> Reference:
    try:
        reference = _references.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidInput(f"not a reference: {str(error)[:MAX_REASON_CHARS]}") from error
    if not _is_id(reference.ref_id):
        raise InvalidInput("not a reference: its id is not a number")
    _check_reference(reference)
    return reference


def _read_addresses(body: bytes) -> list[str]:
    try:
        return _addresses.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidInput(f"not a list of addresses: {str(error)[:MAX_REASON_CHARS]}") from error


def _read_logs(body: bytes) -> tuple[StoredRef, ...]:
    try:
        parts = _logs.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidInput(f"not parts of logs: {str(error)[:MAX_REASON_CHARS]}") from error
    _check_stored(parts)
    return parts


def encode_reply(reply: ExchangeReply) -> bytes:
    """The encoded reply, with as many commands as fit.

    The worker does not list the other commands as its leases, so its next exchange sends them.
    """
    data = codec.encode(reply)
    while len(data) > MAX_EXCHANGE_BYTES and len(reply.commands) > 1:
        half = len(reply.commands) // 2
        reply = msgspec.structs.replace(reply, commands=reply.commands[:half])
        data = codec.encode(reply)
    return data


def _make_json_response(data: bytes) -> Response:
    return Response(data, media_type="application/json")
