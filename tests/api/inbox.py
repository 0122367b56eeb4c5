"""Takes what is sent, once per `Idempotency-Key`: `/api/v1/inbox/{name}`."""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.api.requests import answer


class Inboxes:
    def __init__(self) -> None:
        self.taken: dict[str, list[Any]] = {}
        self.keys: dict[str, list[str]] = {}

    async def __call__(self, request: Request) -> Response:
        name = request.path_params["name"]
        taken, keys = self.taken.setdefault(name, []), self.keys.setdefault(name, [])
        if request.method == "GET":
            return answer({"taken": taken, "keys": keys})
        key = request.headers.get("idempotency-key", "")
        known = bool(key) and key in keys
        keys.append(key)
        if not known:
            taken.append(orjson.loads(await request.body()))
        return answer({"known": known}, 200 if known else 201)


def routes() -> list[Route]:
    inboxes = Inboxes()
    return [Route("/api/v1/inbox/{name}", inboxes.__call__, methods=["GET", "POST", "PUT"])]
