"""Tokens by OAuth 2, for callers that know the secret of a client. Each is new and says how it was obtained."""

from collections.abc import AsyncIterator
from itertools import count
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.api.requests import answer

SECRETS = {"client_secret": "corpus-secret-client", "refresh_token": "corpus-secret-refresh"}


class Tokens:
    def __init__(self) -> None:
        self._number = count(1)

    async def __call__(self, request: Request) -> Response:
        form = {
            name: values[0] for name, values in parse_qs((await request.body()).decode()).items()
        }
        grant = form.get("grant_type")
        needed = "refresh_token" if grant == "refresh_token" else "client_secret"
        if form.get(needed) != SECRETS[needed]:
            return answer(
                {"error": "invalid_client", "error_description": f"not {form.get(needed)}"}, 401
            )
        token = f"corpus-secret-{grant}-{form.get('scope', 'none')}-{next(self._number)}"
        lasts = request.path_params["lasts"]
        return answer(
            {
                "access_token": token,
                "token_type": "bearer",
                **({"expires_in": lasts} if lasts else {}),
            }
        )


async def flood(request: Request) -> Response:
    """An answer of 64 MB, far more than any token."""

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(1_000):
            yield b" " * 65_536

    return StreamingResponse(parts(), media_type="application/json")


def routes() -> list[Route]:
    return [
        Route("/oauth/{lasts:int}/token", Tokens().__call__, methods=["POST"]),
        Route("/oauth/flood", flood, methods=["POST"]),
    ]
