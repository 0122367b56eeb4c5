"""All routes in one application."""

from collections import Counter
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.api import hosts, inbox, pages, patients, tokens, troubles
from tests.api.requests import answer


class CallCounts:
    """Counts how often each path was asked for."""

    def __init__(self, app: Any, counts: Counter[str]) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] not in ("/api/v1/calls", "/health"):
            self._counts[scope["path"]] += 1
        await self._app(scope, receive, send)


async def healthy(request: Request) -> Response:
    return answer({"status": "ok"})


async def answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return answer({"error": error.detail}, error.status_code, error.headers)


def make(rate_limit: int = 0) -> Any:
    counts: Counter[str] = Counter()

    async def calls(request: Request) -> Response:
        if request.method == "DELETE":
            counts.clear()
        return answer(dict(counts))

    routes = [
        Route("/health", healthy),
        Route("/api/v1/calls", calls, methods=["GET", "DELETE"]),
        *pages.routes(),
        *troubles.routes(),
        *patients.routes(rate_limit),
        *inbox.routes(),
        *hosts.routes(),
        *tokens.routes(),
    ]
    return CallCounts(
        Starlette(routes=routes, exception_handlers={HTTPException: answer_error}), counts
    )
