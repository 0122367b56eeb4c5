"""The client of a server, over HTTP. Refusals keep the words of the server."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx
import msgspec

from noetl.client.rows import (
    ExecutionChange,
    PinChange,
    RepeatKind,
    Row,
    RowSpan,
    ScheduleChange,
    UserAbility,
    collect_list_pages,
    join_trace_pages,
)
from noetl.log.events.port import RecordedEvent
from noetl.model import codec
from noetl.model.errors import (
    Conflict,
    Expired,
    InvalidInput,
    NoetlError,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    TooManyRequests,
    Unavailable,
)
from noetl.model.ids import ExecutionId, Tenant
from noetl.model.reference import Reference
from noetl.pipeline.output.reading import StoredResults
from noetl.results.tenancy import StoreTenant
from noetl.runtime.stores import open_store
from noetl.runtime.tls import make_client_context
from noetl.runtime.token_files import find_own_address, find_token
from noetl.settings import StorageSettings, read_settings
from noetl.worker.http import HttpChannel

ANSWER_TIMEOUT_S = 15.0  # seconds to wait for an answer
HTTP_CONNECT_TIMEOUT_S = 3.0  # seconds to wait for a connection
MAX_EVENTS_PER_REQUEST = 1_000  # events
MAX_OUTAGE_S = 30.0  # seconds that a server may be unavailable while a stream is followed
RECONNECT_DELAY_S = 0.2  # seconds between two tries to continue a stream
MAX_ROWS_PER_REQUEST = 500  # rows of a list in one request
# Words of the checks of requests, and how other messages say the same.
PLAIN_WORDS = {
    "Input should be": "must be",
    "String should have": "must have",
    "List should have": "must have",
    "String should match": "must match the",
    "Field required": "is missing",
    "Extra inputs are not permitted": "is not known",
    "Value error, ": "",
    "less than or equal to": "at most",
    "greater than or equal to": "at least",
}
# Parameters that users know by another name.
USER_NAMES = {"q": "the searched text"}
_LAG_METRIC = re.compile(r'noetl_projection_lag_ms\{.*?shard="(\d+)".* (\S+)$')


class HttpClient:
    """A client that calls the HTTP API."""

    has_server = True

    def __init__(self, url: str, home: Path, token: str | None = None) -> None:
        """Without a `token`, the one of the settings is sent, else that of the home to its servers."""
        url = find_own_address(url, home) or url  # not to another program that has its name
        self.url = url
        if token is None:
            token = find_token(url, home, "admin")
        tls = make_client_context(url, home)
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=HTTP_CONNECT_TIMEOUT_S)
        try:
            self._http = httpx.AsyncClient(
                base_url=url,
                timeout=timeout,
                trust_env=False,
                headers=_make_headers(token),
                verify=tls or True,
            )
        except (ValueError, httpx.InvalidURL) as error:
            raise _make_url_error(url) from error
        self._channel = HttpChannel([url], lambda _: token, lambda _: tls)
        self._results: StoredResults | None = None  # opened when it is needed
        self._home = home

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._http.aclose()
        await self._channel.close()

    # -- playbooks --

    async def register(self, text: str, path: str | None = None) -> Row:
        return await self._post_json("/api/catalog/register", {"content": text, "path": path})

    async def list_playbooks(self, prefix: str = "") -> list[Row]:
        return await self._get_all_pages("/api/catalog", "playbooks", prefix=prefix)

    async def get_playbook(self, path: str, version: int | None = None) -> Row:
        return await self._get_json(f"/api/catalog/playbooks/{quote(path)}", version=version)

    async def diff_versions(
        self,
        path: str,
        older: int,
        newer: int | None = None,
    ) -> Row:
        return await self._get_json(f"/api/catalog/diff/{quote(path)}", older=older, newer=newer)

    # -- credentials --

    async def add_credential(
        self,
        name: str,
        kind: str,
        data: dict[str, Any],
    ) -> Row:
        return await self._post_json(
            "/api/credentials",
            {
                "name": name,
                "kind": kind,
                "data": data,
            },
        )

    async def list_credentials(self) -> list[Row]:
        page = await self._get_json("/api/credentials")
        rows: list[Row] = page["credentials"]
        return rows

    async def rewrap_credentials(self) -> Row:
        return await self._post_json("/api/credentials/rewrap", {})

    async def delete_credential(self, name: str) -> Row:
        return await self._delete_json(f"/api/credentials/{quote(name, safe='')}")

    # -- tokens --

    async def create_token(self, **wanted: Any) -> Row:
        return await self._post_json("/api/tokens", wanted)

    async def list_tokens(self, tenant: str | None = None) -> list[Row]:
        page = await self._get_json("/api/tokens", tenant=tenant)
        rows: list[Row] = page["tokens"]
        return rows

    async def revoke_token(self, token_id: str, tenant: str | None = None) -> Row:
        of_tenant = "" if tenant is None else f"?tenant={quote(tenant, safe='')}"
        return await self._delete_json(f"/api/tokens/{quote(token_id, safe='')}{of_tenant}")

    # -- tenants --

    async def create_tenant(self, name: str) -> Row:
        return await self._post_json("/api/tenants", {"name": name})

    async def list_tenants(self) -> list[Row]:
        rows: list[Row] = (await self._get_json("/api/tenants"))["tenants"]
        return rows

    async def get_tenant(self, name: str) -> Row:
        return await self._get_json(f"/api/tenants/{quote(name, safe='')}")

    async def set_tenant_quotas(self, name: str, quotas: Row) -> Row:
        path = f"/api/tenants/{quote(name, safe='')}/quotas"
        answer: Row = _read_json(await self._send_request("PUT", path, json=quotas))
        return answer

    # -- users --

    async def create_user(self, **wanted: Any) -> Row:
        return await self._post_json("/api/users", wanted)

    async def list_users(self) -> list[Row]:
        page = await self._get_json("/api/users")
        rows: list[Row] = page["users"]
        return rows

    async def change_user(self, user: str, how: UserAbility) -> Row:
        return await self._post_json(f"/api/users/{quote(user, safe='')}/{how}")

    async def set_user_password(self, user: str, password: str) -> Row:
        path = f"/api/users/{quote(user, safe='')}/password"
        return await self._put_json(path, {"password": password})

    async def set_user_roles(self, user: str, roles: list[str]) -> Row:
        path = f"/api/users/{quote(user, safe='')}/roles"
        return await self._put_json(path, {"roles": roles})

    # -- sessions --

    # -- the audit trail --

    async def list_audit(self, *, before: int | None, limit: int, **wanted: Any) -> list[Row]:
        page = await self._get_json("/api/audit", before=before, limit=limit, **wanted)
        rows: list[Row] = page["entries"]
        return rows

    async def read_audit_chain(self, after: int) -> Row:
        return await self._get_json("/api/audit/chain", after=after)

    async def make_login_path(self) -> str:
        link = await self._post_json("/api/session/links")
        return str(link["path"])

    # -- what starts executions --

    async def add_schedule(self, **wanted: Any) -> Row:
        return await self._post_json("/api/schedules", wanted)

    async def list_schedules(self) -> list[Row]:
        return await self._get_all_pages("/api/schedules", "schedules")

    async def get_schedule(self, name: str) -> Row:
        return await self._get_json(f"/api/schedules/{quote(name, safe='')}")

    async def change_schedule(self, name: str, how: ScheduleChange) -> Row:
        return await self._post_json(f"/api/schedules/{quote(name, safe='')}/{how}")

    async def delete_schedule(self, name: str) -> Row:
        return await self._delete_json(f"/api/schedules/{quote(name, safe='')}")

    async def list_next_slots(self, name: str, count: int) -> Row:
        return await self._get_json(f"/api/schedules/{quote(name, safe='')}/next", count=count)

    async def add_hook(self, **call: Any) -> Row:
        return await self._post_json("/api/hooks", call)

    async def list_hooks(self) -> list[Row]:
        return await self._get_all_pages("/api/hooks", "hooks")

    async def delete_hook(self, name: str) -> Row:
        return await self._delete_json(f"/api/hooks/{quote(name, safe='')}")

    # -- state between executions --

    async def list_state_values(self, path: str | None) -> list[Row]:
        if path is None:
            return await self._get_all_pages("/api/state", "state")
        page = await self._get_json(f"/api/state/values/{quote(path)}")
        rows: list[Row] = page["state"]
        return rows

    async def get_state_value(self, path: str, name: str) -> Row:
        return await self._get_json(_make_state_path(path, name))

    async def set_state(
        self,
        path: str,
        name: str,
        value: Any,
        expected: int | None,
    ) -> Row:
        body = {"value": value, "expected_version": expected}
        response = await self._send_request("PUT", _make_state_path(path, name), json=body)
        answer: Row = _read_json(response)
        return answer

    async def unset_state(self, path: str, name: str, expected: int | None) -> Row:
        query = "" if expected is None else f"?expected_version={expected}"
        return await self._delete_json(_make_state_path(path, name) + query)

    async def list_state_history(self, path: str, name: str) -> list[Row]:
        page = await self._get_json(f"/api/state/history/{quote(name, safe='')}/{quote(path)}")
        rows: list[Row] = page["versions"]
        return rows

    # -- executions --

    async def start(
        self,
        path: str,
        version: int | None,
        payload: dict[str, Any],
        key: str | None = None,
    ) -> ExecutionId:
        body = {"path": path, "version": version, "payload": payload}
        headers = {} if key is None else {"Idempotency-Key": key}
        started = await self._post_json("/api/execute", body, headers)
        return ExecutionId(started["execution_id"])

    async def repeat_execution(
        self, execution_id: ExecutionId, how: RepeatKind, **wish: Any
    ) -> ExecutionId:
        started = await self._post_json(f"/api/executions/{execution_id}/{how}", wish)
        return ExecutionId(started["execution_id"])

    async def preview_repeat(self, execution_id: ExecutionId, how: RepeatKind, **wish: Any) -> Row:
        return await self._post_json(f"/api/executions/{execution_id}/{how}/preview", wish)

    async def change_execution(self, execution_id: ExecutionId, how: ExecutionChange) -> Row:
        return await self._post_json(f"/api/executions/{execution_id}/{how}")

    async def send_signal(self, execution_id: ExecutionId, name: str, payload: Any) -> Row:
        return await self._post_json(
            f"/api/executions/{execution_id}/signals/{quote(name, safe='')}", {"payload": payload}
        )

    async def list_executions(
        self, *, before: str | None = None, limit: int = 50, **filters: Any
    ) -> list[Row]:
        async def read_page(start: str | None, missing: int) -> tuple[list[Row], str | None]:
            page = await self._get_json("/api/executions", before=start, limit=missing, **filters)
            return page["executions"], page["next"]

        return await collect_list_pages(read_page, before, limit)

    async def get_execution(self, execution_id: ExecutionId, min_seq: int | None = None) -> Row:
        return await self._get_json(f"/api/executions/{execution_id}", min_seq=min_seq)

    async def get_status(self, execution_id: ExecutionId, wait: int = 0) -> Row:
        return await self._get_json(f"/api/executions/{execution_id}/status", wait=wait or None)

    async def get_workload(self, execution_id: ExecutionId) -> Row:
        return await self._get_json(f"/api/executions/{execution_id}/workload")

    async def get_cause(self, execution_id: ExecutionId, min_seq: int) -> Row | None:
        execution = await self.get_execution(execution_id, min_seq)
        cause: Row | None = execution["cause"]
        return cause

    async def list_items(self, execution_id: ExecutionId, step: str, **wanted: Any) -> Row:
        place = f"/api/executions/{execution_id}/steps/{quote(step, safe='')}/items"
        return await self._get_json(place, **wanted)

    async def explain_step(
        self, execution_id: ExecutionId, step: str, at: int | None = None, run: int | None = None
    ) -> Row:
        return await self._get_json(
            f"/api/executions/{execution_id}/explain/{quote(step, safe='')}", at=at, run=run
        )

    async def get_page(self, execution_id: ExecutionId, at: int | None = None) -> Row:
        return await self._get_json(f"/api/executions/{execution_id}/view", at=at)

    async def find_event(self, execution_id: ExecutionId, number: int) -> int:
        place = f"/api/executions/{execution_id}/events"
        page = await self._get_json(place, number=number, limit=1)
        return int(page["events"][0]["seq"])

    async def list_events(self, execution_id: ExecutionId, after: int = 0) -> list[RecordedEvent]:
        page = await self._get_json(
            f"/api/executions/{execution_id}/events", after=after, limit=MAX_EVENTS_PER_REQUEST
        )
        return [_decode_recorded_event(row) for row in page["events"]]

    async def wait_for_events(self, execution_id: ExecutionId, after: int) -> list[RecordedEvent]:
        """The server holds the request for some seconds if there are no events yet."""
        try:
            page = await self._get_json(
                f"/api/executions/{execution_id}/events",
                after=after,
                limit=MAX_EVENTS_PER_REQUEST,
                min_seq=after + 1,
            )
        except Unavailable as error:
            if error.code != "NOT_YET":
                raise
            return []
        return [_decode_recorded_event(row) for row in page["events"]]

    async def stream_logs(
        self, execution_id: ExecutionId, step: str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[list[Row], None]:
        place, after = f"/api/executions/{execution_id}/logs", 0
        if follow:
            async with aclosing(self._stream_log_lines(f"{place}/stream", step)) as pages:
                async for rows in pages:
                    yield rows
            return
        while rows := await self._get_log_lines(place, step, after):
            after = rows[-1]["part"]
            yield rows

    async def _get_log_lines(
        self,
        place: str,
        step: str | None,
        after: int,
    ) -> list[Row]:
        answer = await self._send_request("GET", place, params=_drop_none(step=step, after=after))
        return [msgspec.json.decode(line) for line in answer.content.splitlines()]

    async def _stream_log_lines(
        self, place: str, step: str | None
    ) -> AsyncGenerator[list[Row], None]:
        """Follow a stream to its end. A broken stream is continued where it stopped.

        Gives up if the server is unavailable for too long.
        """
        loop = asyncio.get_running_loop()
        after, deadline = 0, loop.time() + MAX_OUTAGE_S
        while True:
            query = _drop_none(step=step, after=after)
            try:
                async with self._http.stream("GET", place, params=query) as answer:
                    if answer.status_code == 204:
                        return
                    if not answer.is_success:
                        await answer.aread()
                        raise _make_refusal_error(answer)
                    async for name, rows in _read_server_sent_events(answer):
                        deadline = loop.time() + MAX_OUTAGE_S
                        if name == "end":
                            return
                        if rows:
                            after = rows[-1]["part"]
                        yield rows
            except (httpx.TransportError, Unavailable) as error:
                if loop.time() > deadline:
                    raise Unavailable(
                        f"{self.url} does not answer: {error}", hint="try again"
                    ) from error
            await asyncio.sleep(RECONNECT_DELAY_S)

    async def resolve(self, reference: Reference) -> Any:
        if self._results is None:
            self._results = await self._open_results()
        return await self._results.resolve(reference)

    async def _open_results(self) -> StoredResults:
        """The results of the caller's tenant. Large ones are read from their store, not through the
        server."""
        session = await self._get_json("/api/session")
        tenant = StoreTenant(Tenant(session["tenant"]))
        storage = read_settings(StorageSettings)
        store = open_store(self._channel, self._home, storage, tenant=tenant)
        return StoredResults(store, self._channel.list_manifest_parts)

    async def preview_result(self, execution_id: ExecutionId, step: str, rows: int) -> Row:
        return await self._get_json(_make_result_path(execution_id, step), rows=rows)

    async def download_result(
        self,
        execution_id: ExecutionId,
        step: str,
        format: str | None,
        rows: RowSpan = (0, None),
    ) -> AsyncGenerator[bytes, None]:
        query = _drop_none(format=format, start=rows[0] or None, stop=rows[1])
        place = f"{_make_result_path(execution_id, step)}/data"
        # No read timeout: a large result may take long.
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=HTTP_CONNECT_TIMEOUT_S, read=None)
        try:
            async with self._http.stream("GET", place, params=query, timeout=timeout) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise _make_refusal_error(answer)
                async for part in answer.aiter_bytes():
                    yield part
        except httpx.TransportError as error:
            raise Unavailable(f"{self.url} broke off: {error}", hint="try again") from error

    async def trace_result(self, execution_id: ExecutionId, step: str, depth: int) -> Row:
        place = f"/api/executions/{execution_id}/trace/{quote(step, safe='')}"
        return await join_trace_pages(lambda after: self._get_json(place, depth=depth, after=after))

    async def change_pin(self, execution_id: ExecutionId, step: str, how: PinChange) -> Row:
        place = f"{_make_result_path(execution_id, step)}/pin"
        if how == "pin":
            return await self._post_json(place)
        return await self._delete_json(place)

    async def get_execution_usage(self, execution_id: ExecutionId) -> Row:
        return await self._get_json(f"/api/executions/{execution_id}/usage")

    async def list_usage(
        self,
        path: str | None,
        before: str | None,
        limit: int,
    ) -> Row:
        return await self._get_json("/api/usage", path=path, before=before, limit=limit)

    # -- the queue --

    async def list_queue(
        self, status: str | None = None, execution_id: ExecutionId | None = None
    ) -> list[Row]:
        page = await self._get_json(
            "/api/queue", status=status, execution_id=execution_id, limit=MAX_ROWS_PER_REQUEST
        )
        rows: list[Row] = page["commands"]
        return rows

    async def check_history_readable(self) -> str:
        response = await self._call_server("GET", "/ready")  # a 503 has the same body
        checks = _read_json(response).get("checks", {})
        return str(checks.get("history", "ok"))  # older servers do not have this check

    async def has_running_server(self) -> bool:
        return True

    async def list_workers(self) -> list[Row]:
        response = await self._send_request("GET", "/api/workers")
        rows: list[Row] = _read_json(response)
        return rows

    async def read_projection_lag(self) -> dict[int, float]:
        """The lag of the shards that the answering server owns, from its metrics."""
        response = await self._send_request("GET", "/metrics")
        lag_ms: dict[int, float] = {}
        for line in response.text.splitlines():
            match = _LAG_METRIC.match(line)
            if match is None:
                continue
            shard, value = int(match[1]), float(match[2])
            if value > 0:
                lag_ms[shard] = value
        return lag_ms

    # -- HTTP --

    async def _get_json(self, place: str, /, **query: Any) -> Row:
        response = await self._send_request("GET", place, params=_drop_none(**query))
        answer: Row = _read_json(response)
        return answer

    async def _get_all_pages(self, place: str, of: str, **query: Any) -> list[Row]:
        """All rows of a paged list. `of` names their field in a page."""
        rows: list[Row] = []
        after: str | None = ""
        while after is not None:
            page = await self._get_json(place, after=after, limit=MAX_ROWS_PER_REQUEST, **query)
            rows += page[of]
            after = page["next"]
        return rows

    async def _delete_json(self, path: str) -> Row:
        response = await self._send_request("DELETE", path)
        answer: Row = _read_json(response)
        return answer

    async def _post_json(
        self,
        path: str,
        body: Row | None = None,
        headers: dict[str, str] | None = None,
    ) -> Row:
        payload = None if body is None else _drop_none(**body)
        response = await self._send_request("POST", path, json=payload, headers=headers)
        answer: Row = _read_json(response)
        return answer

    async def _put_json(self, path: str, body: Row) -> Row:
        answer: Row = _read_json(await self._send_request("PUT", path, json=body))
        return answer

    async def _send_request(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request. Errors of the connection and refusals are raised as ours."""
        answer = await self._call_server(method, path, **more)
        if answer.is_success:
            return answer
        raise _make_refusal_error(answer)

    async def _call_server(self, method: str, path: str, **more: Any) -> httpx.Response:
        """The answer of the server. Errors of the connection are raised as ours."""
        try:
            return await self._http.request(method, path, **more)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise _make_url_error(self.url) from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise Unavailable(
                    f"{self.url} has a certificate that this machine does not trust: {error}",
                    hint="NOETL_TLS_CA names the file of the authority that signed it",
                ) from error
            raise Unavailable(
                f"no server answers at {self.url}",
                hint="noetl server start starts one, noetl dev one with a worker; "
                "without the address of a server you work on this machine",
            ) from error
        except httpx.TimeoutException as error:
            message = f"{self.url} has not answered within {ANSWER_TIMEOUT_S:.0f} s"
            raise Unavailable(message, hint="try again") from error
        except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
            raise Unavailable(
                f"{self.url} has broken off the connection", hint="try again"
            ) from error
        except httpx.HTTPError as error:
            raise Unavailable(
                f"{self.url}: {type(error).__name__} {error}".rstrip(), hint="try again"
            ) from error


def _make_headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _make_result_path(execution_id: ExecutionId, step: str) -> str:
    return f"/api/executions/{execution_id}/result/{quote(step, safe='')}"


def _make_state_path(path: str, name: str) -> str:
    return f"/api/state/value/{quote(name, safe='')}/{quote(path)}"


def _drop_none(**query: Any) -> dict[str, Any]:
    """The parameters that are not None."""
    return {name: value for name, value in query.items() if value is not None}


async def _read_server_sent_events(answer: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    """Name and data of server-sent events. Our servers write one data line for each."""
    name = ""
    async for line in answer.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, msgspec.json.decode(value)


def _make_url_error(url: str) -> InvalidInput:
    return InvalidInput(
        f"{url!r} is not the address of a server",
        hint="http://127.0.0.1:8082, given to the client or in NOETL_SERVER_URL",
    )


def _decode_recorded_event(row: Row) -> RecordedEvent:
    event = codec.decode_event(msgspec.json.encode(row["data"]))
    return RecordedEvent(
        ExecutionId(row["execution_id"]),
        0,
        row["seq"],
        0,
        event,
    )


def _read_json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise _make_stranger_error(answer) from error


def _make_stranger_error(answer: httpx.Response) -> Unavailable:
    return Unavailable(
        f"{answer.request.url} answers {answer.status_code}, but not as a NoETL server",
        hint="is this the address of a NoETL server?",
    )


def _make_refusal_error(answer: httpx.Response) -> NoetlError:
    """The error that the server's answer describes."""
    try:
        body = answer.json()
        detail = str(body["detail"])
        hint = body.get("hint")
        code = str(body.get("code", ""))
    except (ValueError, KeyError, TypeError):
        return _make_stranger_error(answer)
    findings = body.get("findings") or []
    if code == "INVALID_REQUEST" and findings:
        detail = "; ".join(map(_describe_misfit, findings))
        hint = "correct it; or are server and client of different versions?"
    for finding in findings:
        if "line" in finding:
            place = f"{finding['file']}:{finding['line']}:{finding['column']}"
            detail += f"\n{place}: {finding['code']} {finding['message']}"
    error = _choose_error_type(answer.status_code)(detail, hint=hint)
    error.code = code or error.code
    return error


def _describe_misfit(finding: Row) -> str:
    """A value that the server refuses, in the words of our other messages."""
    name = str(finding["at"]).partition(".")[2] or "the request"
    message, _, _ = str(finding["message"]).partition(", unable to")
    for words, plain_words in PLAIN_WORDS.items():
        message = message.replace(words, plain_words)
    return f"{USER_NAMES.get(name, name)} {message}"


def _choose_error_type(status: int) -> type[NoetlError]:
    errors: dict[int, type[NoetlError]] = {
        401: NotAuthenticated,
        403: NotPermitted,
        404: NotFound,
        409: Conflict,
        410: Expired,
        429: TooManyRequests,
    }
    if status in errors:
        return errors[status]
    return Unavailable if status >= 500 else InvalidInput
