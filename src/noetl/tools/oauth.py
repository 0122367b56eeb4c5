"""Gets tokens by OAuth 2: with a refresh token, or else with client credentials.

A worker keeps a token in memory until shortly before it expires.
"""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from noetl.model.errors import InvalidInput, Unavailable

MARGIN = 30.0  # seconds before its expiry in which a token is not used
LASTS = 300.0  # seconds that a token lasts if the server does not say
MOST = 1_000
PATIENCE = 30.0
LONGEST = 1 << 20  # bytes of an answer


class TokenResponse(msgspec.Struct):
    access_token: str
    expires_in: float | None = None


@dataclass
class Tokens:
    """The tokens of one worker."""

    _known: dict[tuple[str, ...], tuple[str, float]] = field(default_factory=dict)

    async def get(
        self, url: str, fields: dict[str, Any], scope: str | None, lasts: float | None
    ) -> str:
        """The token for the fields of a credential.

        Raises InvalidInput if the server refuses it, Unavailable if the server does not answer.
        """
        form = _form(fields, scope)
        pairs = sorted(f"{name}={value}" for name, value in form.items())
        key = (url, *pairs)
        token, until = self._known.get(key, ("", 0.0))
        if time.monotonic() < until:
            return token
        response = await _asked(url, form)
        seconds = LASTS
        if response.expires_in is not None:
            seconds = response.expires_in
        if lasts:
            seconds = min(seconds, lasts)
        until = time.monotonic() + max(0.0, seconds - MARGIN)
        self._known.pop(key, None)
        if len(self._known) >= MOST:
            oldest = next(iter(self._known))
            self._known.pop(oldest)
        self._known[key] = (response.access_token, until)
        return response.access_token


def _form(fields: dict[str, Any], scope: str | None) -> dict[str, str]:
    wanted = ("client_id", "client_secret", "refresh_token", "audience")
    form = {name: str(fields[name]) for name in wanted if fields.get(name)}
    if "client_id" not in form:
        raise InvalidInput("a token needs `client_id`, in the credential or in `map`")
    if "refresh_token" in form:
        form["grant_type"] = "refresh_token"
    else:
        form["grant_type"] = "client_credentials"
    if scope is not None:
        form["scope"] = scope
    return form


async def _asked(url: str, form: dict[str, str]) -> TokenResponse:
    import httpx  # here, because few workers need tokens

    from noetl.tools.egress import Transport

    try:
        async with (
            httpx.AsyncClient(transport=Transport(), timeout=PATIENCE, trust_env=False) as client,
            client.stream("POST", url, data=form, headers={"Accept": "application/json"}) as answer,
        ):
            content = await _short(answer.aiter_bytes())
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{url} is no address: {error}") from None
    except httpx.HTTPError as error:
        raise Unavailable(f"{url} does not answer: {type(error).__name__}") from None
    if answer.status_code in (408, 429) or answer.status_code >= 500:
        raise Unavailable(f"{url} answers {answer.status_code}")
    if not answer.is_success:
        raise InvalidInput(
            f"{url} gives no token: {answer.status_code} {_reason(content)}".rstrip()
        )
    try:
        return msgspec.json.decode(content, type=TokenResponse, strict=False)
    except msgspec.DecodeError:
        raise InvalidInput(f"{url} answers, but with no access_token") from None


async def _short(parts: AsyncIterator[bytes]) -> bytes:
    """Read a body. Raises InvalidInput if it is longer than a token may be."""
    content = b""
    async for part in parts:
        content += part
        if len(content) > LONGEST:
            raise InvalidInput(f"the answer is longer than {LONGEST} bytes, which is no token")
    return content


def _reason(content: bytes) -> str:
    """The error code of a response, such as `invalid_client`.

    The rest of the response is not shown, because it may repeat the secrets of the request.
    """
    try:
        code = str(msgspec.json.decode(content).get("error", ""))
    except (msgspec.DecodeError, AttributeError):
        return ""
    if len(code) < 50 and code.replace("_", "").isalnum():
        return code
    return ""
