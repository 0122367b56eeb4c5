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

from noetl.cli.client import Again, Change, Pinning, Row, Span, Turned, pages_of
from noetl.log.port import Recorded
from noetl.model import codec
from noetl.model.errors import Conflict, Expired, InvalidInput, NoetlError, NotFound, Unavailable
from noetl.model.ids import ExecutionId
from noetl.model.reference import Reference
from noetl.pipeline.reading import Reading
from noetl.settings import Storage, read
from noetl.worker.app import open_store
from noetl.worker.http import HttpChannel

PATIENCE = 15.0  # seconds to wait for an answer
CONNECT = 3.0  # seconds to wait for a connection
PAGE = 1_000  # events
AWAY = 30.0  # seconds that a server may be unavailable while a stream is followed
PAUSE = 0.2  # seconds between two tries to continue a stream
LISTED = 500  # rows of a list in one request
_LAG = re.compile(r'noetl_projection_lag_ms\{.*?shard="(\d+)".* (\S+)$')


class Remote:
    """A client that calls the HTTP API."""

    runs = True

    def __init__(self, url: str, home: Path) -> None:
        self.url = url
        timeout = httpx.Timeout(PATIENCE, connect=CONNECT)
        try:
            self._http = httpx.AsyncClient(base_url=url, timeout=timeout, trust_env=False)
        except (ValueError, httpx.InvalidURL) as error:
            raise _no_url(url) from error
        self._channel = HttpChannel([url])
        self._results = Reading(
            open_store(self._channel, home, read(Storage)), self._channel.manifest
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._http.aclose()
        await self._channel.close()

    # -- playbooks --

    async def register(self, text: str, path: str | None = None) -> Row:
        return await self._post("/api/catalog/register", {"content": text, "path": path})

    async def playbooks(self, prefix: str = "") -> list[Row]:
        return await self._pages("/api/catalog", "playbooks", prefix=prefix)

    async def playbook(self, path: str, version: int | None = None) -> Row:
        return await self._get(f"/api/catalog/playbooks/{quote(path)}", version=version)

    async def diff(self, path: str, older: int, newer: int | None = None) -> Row:
        return await self._get(f"/api/catalog/diff/{quote(path)}", older=older, newer=newer)

    # -- credentials --

    async def add_credential(self, name: str, kind: str, data: dict[str, Any]) -> Row:
        return await self._post(
            "/api/credentials",
            {
                "name": name,
                "kind": kind,
                "data": data,
            },
        )

    async def credentials(self) -> list[Row]:
        page = await self._get("/api/credentials")
        rows: list[Row] = page["credentials"]
        return rows

    async def delete_credential(self, name: str) -> Row:
        return await self._delete(f"/api/credentials/{quote(name, safe='')}")

    # -- what starts executions --

    async def add_schedule(self, **wanted: Any) -> Row:
        return await self._post("/api/schedules", wanted)

    async def schedules(self) -> list[Row]:
        return await self._pages("/api/schedules", "schedules")

    async def schedule(self, name: str) -> Row:
        return await self._get(f"/api/schedules/{quote(name, safe='')}")

    async def change_schedule(self, name: str, how: Turned) -> Row:
        return await self._post(f"/api/schedules/{quote(name, safe='')}/{how}")

    async def delete_schedule(self, name: str) -> Row:
        return await self._delete(f"/api/schedules/{quote(name, safe='')}")

    async def slots(self, name: str, count: int) -> Row:
        return await self._get(f"/api/schedules/{quote(name, safe='')}/next", count=count)

    async def add_hook(self, **call: Any) -> Row:
        return await self._post("/api/hooks", call)

    async def hooks(self) -> list[Row]:
        return await self._pages("/api/hooks", "hooks")

    async def delete_hook(self, name: str) -> Row:
        return await self._delete(f"/api/hooks/{quote(name, safe='')}")

    # -- state between executions --

    async def state_values(self, path: str | None) -> list[Row]:
        if path is None:
            return await self._pages("/api/state", "state")
        page = await self._get(f"/api/state/values/{quote(path)}")
        rows: list[Row] = page["state"]
        return rows

    async def state_value(self, path: str, name: str) -> Row:
        return await self._get(_state_place(path, name))

    async def set_state(
        self,
        path: str,
        name: str,
        value: Any,
        expected: int | None,
    ) -> Row:
        body = {"value": value, "expected_version": expected}
        response = await self._ask("PUT", _state_place(path, name), json=body)
        answer: Row = response.json()
        return answer

    async def unset_state(self, path: str, name: str, expected: int | None) -> Row:
        query = "" if expected is None else f"?expected_version={expected}"
        return await self._delete(_state_place(path, name) + query)

    async def state_history(self, path: str, name: str) -> list[Row]:
        page = await self._get(f"/api/state/history/{quote(name, safe='')}/{quote(path)}")
        rows: list[Row] = page["versions"]
        return rows

    # -- executions --

    async def start(self, path: str, version: int | None, payload: dict[str, Any]) -> ExecutionId:
        body = {"path": path, "version": version, "payload": payload}
        started = await self._post("/api/execute", body)
        return ExecutionId(started["execution_id"])

    async def again(self, execution_id: ExecutionId, how: Again, **wish: Any) -> ExecutionId:
        started = await self._post(f"/api/executions/{execution_id}/{how}", wish)
        return ExecutionId(started["execution_id"])

    async def preview_again(self, execution_id: ExecutionId, how: Again, **wish: Any) -> Row:
        return await self._post(f"/api/executions/{execution_id}/{how}/preview", wish)

    async def change(self, execution_id: ExecutionId, how: Change) -> Row:
        return await self._post(f"/api/executions/{execution_id}/{how}")

    async def signal(self, execution_id: ExecutionId, name: str, payload: Any) -> Row:
        return await self._post(
            f"/api/executions/{execution_id}/signals/{quote(name, safe='')}", {"payload": payload}
        )

    async def executions(
        self, *, before: str | None = None, limit: int = 50, **filters: Any
    ) -> list[Row]:
        page = await self._get("/api/executions", before=before, limit=limit, **filters)
        rows: list[Row] = page["executions"]
        return rows

    async def execution(self, execution_id: ExecutionId, min_seq: int | None = None) -> Row:
        return await self._get(f"/api/executions/{execution_id}", min_seq=min_seq)

    async def workload(self, execution_id: ExecutionId) -> Row:
        return await self._get(f"/api/executions/{execution_id}/workload")

    async def cause(self, execution_id: ExecutionId, min_seq: int) -> Row | None:
        execution = await self.execution(execution_id, min_seq)
        cause: Row | None = execution["cause"]
        return cause

    async def explain(self, execution_id: ExecutionId, step: str) -> Row:
        return await self._get(f"/api/executions/{execution_id}/explain/{quote(step, safe='')}")

    async def events(self, execution_id: ExecutionId, after: int = 0) -> list[Recorded]:
        page = await self._get(f"/api/executions/{execution_id}/events", after=after, limit=PAGE)
        return [_recorded(row) for row in page["events"]]

    async def events_after(self, execution_id: ExecutionId, after: int) -> list[Recorded]:
        """The server holds the request for some seconds if there are no events yet."""
        try:
            page = await self._get(
                f"/api/executions/{execution_id}/events", after=after, limit=PAGE, min_seq=after + 1
            )
        except Unavailable as error:
            if error.code != "NOT_YET":
                raise
            return []
        return [_recorded(row) for row in page["events"]]

    async def logs(
        self, execution_id: ExecutionId, step: str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[list[Row], None]:
        place, after = f"/api/executions/{execution_id}/logs", 0
        if follow:
            async with aclosing(self._streamed(f"{place}/stream", step)) as pages:
                async for rows in pages:
                    yield rows
            return
        while rows := await self._lines(place, step, after):
            after = rows[-1]["part"]
            yield rows

    async def _lines(self, place: str, step: str | None, after: int) -> list[Row]:
        answer = await self._ask("GET", place, params=_given(step=step, after=after))
        return [msgspec.json.decode(line) for line in answer.content.splitlines()]

    async def _streamed(self, place: str, step: str | None) -> AsyncGenerator[list[Row], None]:
        """Follow a stream to its end. A broken stream is continued where it stopped.

        Gives up if the server is unavailable for too long.
        """
        loop = asyncio.get_running_loop()
        after, deadline = 0, loop.time() + AWAY
        while True:
            query = _given(step=step, after=after)
            try:
                async with self._http.stream("GET", place, params=query) as answer:
                    if answer.status_code == 204:
                        return
                    if not answer.is_success:
                        await answer.aread()
                        raise _refused(answer)
                    async for name, rows in _messages(answer):
                        deadline = loop.time() + AWAY
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
            await asyncio.sleep(PAUSE)

    async def resolve(self, reference: Reference) -> Any:
        return await self._results.resolve(reference)

    async def preview(self, execution_id: ExecutionId, step: str, rows: int) -> Row:
        return await self._get(_result(execution_id, step), rows=rows)

    async def download(
        self,
        execution_id: ExecutionId,
        step: str,
        format: str | None,
        rows: Span = (0, None),
    ) -> AsyncGenerator[bytes, None]:
        query = _given(format=format, start=rows[0] or None, stop=rows[1])
        place = f"{_result(execution_id, step)}/data"
        # No read timeout: a large result may take long.
        timeout = httpx.Timeout(PATIENCE, connect=CONNECT, read=None)
        try:
            async with self._http.stream("GET", place, params=query, timeout=timeout) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise _refused(answer)
                async for part in answer.aiter_bytes():
                    yield part
        except httpx.TransportError as error:
            raise Unavailable(f"{self.url} broke off: {error}", hint="try again") from error

    async def trace(self, execution_id: ExecutionId, step: str, depth: int) -> Row:
        place = f"/api/executions/{execution_id}/trace/{quote(step, safe='')}"
        return await pages_of(lambda after: self._get(place, depth=depth, after=after))

    async def pin(self, execution_id: ExecutionId, step: str, how: Pinning) -> Row:
        place = f"{_result(execution_id, step)}/pin"
        if how == "pin":
            return await self._post(place)
        return await self._delete(place)

    async def usage_of(self, execution_id: ExecutionId) -> Row:
        return await self._get(f"/api/executions/{execution_id}/usage")

    async def usage(self, path: str | None, before: str | None, limit: int) -> Row:
        return await self._get("/api/usage", path=path, before=before, limit=limit)

    # -- the queue --

    async def queue(
        self, status: str | None = None, execution_id: ExecutionId | None = None
    ) -> list[Row]:
        page = await self._get("/api/queue", status=status, execution_id=execution_id, limit=LISTED)
        rows: list[Row] = page["commands"]
        return rows

    async def history(self) -> str:
        response = await self._http.get("/ready")  # a 503 has the same body
        checks = response.json().get("checks", {})
        return str(checks.get("history", "ok"))  # older servers do not have this check

    async def workers(self) -> list[Row]:
        response = await self._ask("GET", "/api/workers")
        rows: list[Row] = response.json()
        return rows

    async def lag(self) -> dict[int, float]:
        """The lag of the shards that the answering server owns, from its metrics."""
        response = await self._ask("GET", "/metrics")
        lag_ms: dict[int, float] = {}
        for line in response.text.splitlines():
            match = _LAG.match(line)
            if match is None:
                continue
            shard, value = int(match[1]), float(match[2])
            if value > 0:
                lag_ms[shard] = value
        return lag_ms

    # -- HTTP --

    async def _get(self, place: str, /, **query: Any) -> Row:
        response = await self._ask("GET", place, params=_given(**query))
        answer: Row = response.json()
        return answer

    async def _pages(self, place: str, of: str, **query: Any) -> list[Row]:
        """All rows of a paged list. `of` names their field in a page."""
        rows: list[Row] = []
        after: str | None = ""
        while after is not None:
            page = await self._get(place, after=after, limit=LISTED, **query)
            rows += page[of]
            after = page["next"]
        return rows

    async def _delete(self, path: str) -> Row:
        response = await self._ask("DELETE", path)
        answer: Row = response.json()
        return answer

    async def _post(self, path: str, body: Row | None = None) -> Row:
        payload = None if body is None else _given(**body)
        response = await self._ask("POST", path, json=payload)
        answer: Row = response.json()
        return answer

    async def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request. Errors of the connection and refusals are raised as ours."""
        try:
            answer = await self._http.request(method, path, **more)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise _no_url(self.url) from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unavailable(
                f"no server answers at {self.url}",
                hint="noetl server start, or unset NOETL_SERVER_URL to work on this machine",
            ) from error
        except httpx.HTTPError as error:
            raise Unavailable(
                f"{self.url}: {type(error).__name__} {error}".rstrip(), hint="try again"
            ) from error
        if answer.is_success:
            return answer
        raise _refused(answer)


def _result(execution_id: ExecutionId, step: str) -> str:
    return f"/api/executions/{execution_id}/result/{quote(step, safe='')}"


def _state_place(path: str, name: str) -> str:
    return f"/api/state/value/{quote(name, safe='')}/{quote(path)}"


def _given(**query: Any) -> dict[str, Any]:
    """The parameters that are not None."""
    return {name: value for name, value in query.items() if value is not None}


async def _messages(answer: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    """Name and data of server-sent events. Our servers write one data line for each."""
    name = ""
    async for line in answer.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, msgspec.json.decode(value)


def _no_url(url: str) -> InvalidInput:
    return InvalidInput(
        f"NOETL_SERVER_URL is not an address: {url!r}", hint="http://127.0.0.1:8082"
    )


def _recorded(row: Row) -> Recorded:
    event = codec.decode_event(msgspec.json.encode(row["data"]))
    return Recorded(
        ExecutionId(row["execution_id"]),
        0,
        row["seq"],
        0,
        event,
    )


def _refused(answer: httpx.Response) -> NoetlError:
    """The error that the server's answer describes."""
    try:
        body = answer.json()
        detail = str(body["detail"])
        hint = body.get("hint")
        code = str(body.get("code", ""))
    except (ValueError, KeyError, TypeError):
        return Unavailable(
            f"{answer.request.url} answers {answer.status_code}, but not as a NoETL server",
            hint="is NOETL_SERVER_URL right?",
        )
    for finding in body.get("findings") or []:
        if "line" in finding:
            place = f"{finding['file']}:{finding['line']}:{finding['column']}"
            detail += f"\n{place}: {finding['code']} {finding['message']}"
    error = _error_type(answer.status_code)(detail, hint=hint)
    error.code = code or error.code
    return error


def _error_type(status: int) -> type[NoetlError]:
    errors: dict[int, type[NoetlError]] = {
        404: NotFound,
        409: Conflict,
        410: Expired,
    }
    if status in errors:
        return errors[status]
    return Unavailable if status >= 500 else InvalidInput
