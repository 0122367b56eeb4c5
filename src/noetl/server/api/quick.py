"""Requests that come by the hundred, answered without the framework around them: exchanges of workers, to start an execution,
and to look at one.

They are routes like any other, documented and checked there. What is unusual about a request (a query, a key, a body without a
length or that does not fit) is left to its route, which says what is wrong with it; so nothing is decided here that is not
decided there.
"""

from collections.abc import Awaitable, Callable
from re import compile
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from noetl.model.errors import NoetlError
from noetl.model.identity import Identity
from noetl.server.api import executions
from noetl.server.api.bodies import EXECUTION_ID, decode
from noetl.server.api.depends import identity
from noetl.server.api.guard import EXCHANGE
from noetl.server.api.problems import of_error
from noetl.server.services.all import Services

_ONE = compile(f"/api/executions/({EXECUTION_ID})")
_STARTS = ("/api/execute", "/api/executions/execute")
JSON = "application/json"


class Quick:
    def __init__(
        self, app: FastAPI, services: Services, exchange: Callable[[Request], Awaitable[Response]]
    ) -> None:
        self._app = app
        self._services = services
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["query_string"]:
            if scope["path"] == EXCHANGE:
                return await self._talk(scope, receive, send)
            if scope["method"] == "POST" and scope["path"] in _STARTS:
                return await self._start(scope, receive, send)
            if scope["method"] == "GET" and (one := _ONE.fullmatch(scope["path"])) is not None:
                return await self._show(one[1], scope, receive, send)
        await self._app(scope, receive, send)

    async def _talk(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if scope["method"] != "POST" or "content-length" not in request.headers:
            return await self._app(scope, receive, send)
        await (await self._exchange(request))(scope, receive, send)

    async def _start(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        headers = request.headers
        usual = (
            headers.get("content-type") == JSON
            and "content-length" in headers
            and "idempotency-key" not in headers
        )
        if not usual:
            return await self._app(scope, receive, send)
        body = await request.body()
        try:
            asked = executions.Execute.model_validate(decode(body))
        except (RequestValidationError, ValidationError):
            return await self._app(scope, _again(body, receive), send)
        scope["endpoint"] = executions.start_execution

        async def start() -> Any:
            return (
                await executions.start_execution(asked, self._services, await self._who())
            ).model_dump()

        await (await _answer(start, 202))(scope, receive, send)

    async def _show(self, execution_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        scope["endpoint"] = executions.get_execution

        async def show() -> Any:
            return await executions.detailed(self._services, await self._who(), execution_id, None)

        await (await _answer(show, 200))(scope, receive, send)

    async def _who(self) -> Identity:
        who: Identity = await self._app.dependency_overrides.get(identity, identity)()
        return who


async def _answer(ask: Callable[[], Awaitable[Any]], status: int) -> Response:
    try:
        return Response(msgspec.json.encode(await ask()), status, media_type=JSON)
    except NoetlError as error:
        return of_error(error)


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was taken already, for whoever takes it next."""
    given = False

    async def give() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give
