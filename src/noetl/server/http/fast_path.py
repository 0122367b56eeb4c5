"""A fast path around FastAPI for the most frequent requests: exchanges of workers, the start of an
execution, and reading one.

Each of them also is a normal route, which documents and checks it. An unusual request (with a
query, a key, or a body that has no length or is not valid) goes to its route, which says what is
wrong. So the fast path decides nothing that the route does not decide.
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
from noetl.server.executions import routes as executions
from noetl.server.http.bodies import EXECUTION_ID, decode_strict_json
from noetl.server.http.depends import get_identity
from noetl.server.http.guard import EXCHANGE_PATH
from noetl.server.http.problems import make_error_problem
from noetl.server.services import Services

_EXECUTION_PATH = compile(f"/api/executions/({EXECUTION_ID})")
_START_PATHS = ("/api/execute", "/api/executions/execute")
JSON_TYPE = "application/json"


class FastPath:
    """ASGI middleware that answers frequent requests without FastAPI."""

    def __init__(
        self, app: FastAPI, services: Services, exchange: Callable[[Request], Awaitable[Response]]
    ) -> None:
        self._app = app
        self._services = services
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["query_string"]:
            if scope["path"] == EXCHANGE_PATH:
                return await self._answer_exchange(scope, receive, send)
            if scope["method"] == "POST" and scope["path"] in _START_PATHS:
                return await self._answer_start(scope, receive, send)
            if scope["method"] == "GET":
                match = _EXECUTION_PATH.fullmatch(scope["path"])
                if match is not None:
                    return await self._answer_execution(match[1], scope, receive, send)
        await self._app(scope, receive, send)

    async def _answer_exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if scope["method"] != "POST" or "content-length" not in request.headers:
            return await self._app(scope, receive, send)
        response = await self._exchange(request)
        await response(scope, receive, send)

    async def _answer_start(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        headers = request.headers
        is_usual = (
            headers.get("content-type") == JSON_TYPE
            and "content-length" in headers
            and "idempotency-key" not in headers
        )
        if not is_usual:
            return await self._app(scope, receive, send)
        body = await request.body()
        try:
            wish = executions.Execute.model_validate(decode_strict_json(body))
        except (RequestValidationError, ValidationError):
            return await self._app(scope, _replay_body(body, receive), send)
        scope["endpoint"] = executions.start_execution

        async def run_start() -> Any:
            who = await self._get_caller()
            started = await executions.start_execution(wish, self._services, who)
            return started.model_dump()

        response = await _encode_answer(run_start, 202)
        await response(scope, receive, send)

    async def _answer_execution(
        self, execution_id: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        scope["endpoint"] = executions.get_execution

        async def read_execution() -> Any:
            who = await self._get_caller()
            return await executions.read_detailed(self._services, who, execution_id, None)

        response = await _encode_answer(read_execution, 200)
        await response(scope, receive, send)

    async def _get_caller(self) -> Identity:
        who: Identity = await self._app.dependency_overrides.get(get_identity, get_identity)()
        return who


async def _encode_answer(ask: Callable[[], Awaitable[Any]], status: int) -> Response:
    try:
        return Response(msgspec.json.encode(await ask()), status, media_type=JSON_TYPE)
    except NoetlError as error:
        return make_error_problem(error)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that first returns this body again, which was read already."""
    is_replayed = False

    async def replay() -> Message:
        nonlocal is_replayed
        if is_replayed:
            return await receive()
        is_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
