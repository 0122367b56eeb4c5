"""Gets tokens by OAuth 2: with a refresh token, or else with client credentials.

A worker keeps a token in memory until shortly before it expires.
"""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from noetl.caches import ExpiringCache
from noetl.model.errors import InvalidInput, Unavailable

EXPIRY_MARGIN_S = 30.0  # seconds before its expiry in which a token is not used
DEFAULT_TOKEN_LIFETIME_S = 300.0  # seconds that a token lasts if the server does not say
MAX_CACHED_TOKENS = 1_000
TOKEN_REQUEST_TIMEOUT_S = 30.0
MAX_TOKEN_RESPONSE_BYTES = 1 << 20  # bytes of an answer


class TokenResponse(msgspec.Struct):
    access_token: str
    expires_in: float | None = None


@dataclass
class TokenCache:
    """The tokens of one worker."""

    _tokens: ExpiringCache[tuple[str, ...], str] = field(
        default_factory=lambda: ExpiringCache(MAX_CACHED_TOKENS)
    )

    async def get(
        self, url: str, fields: dict[str, Any], scope: str | None, lasts: float | None
    ) -> str:
        """The token for the fields of a credential.

        Raises InvalidInput if the server refuses it, Unavailable if the server does not answer.
        """
        form = _make_token_form(fields, scope)
        pairs = sorted(f"{name}={value}" for name, value in form.items())
        key = (url, *pairs)
        token = self._tokens.get(key, time.monotonic())
        if token is not None:
            return token
        response = await _request_token(url, form)
        seconds = DEFAULT_TOKEN_LIFETIME_S
        if response.expires_in is not None:
            seconds = response.expires_in
        if lasts:
            seconds = min(seconds, lasts)
        now = time.monotonic()
        until = now + max(0.0, seconds - EXPIRY_MARGIN_S)
        self._tokens.put(key, response.access_token, until=until, now=now)
        return response.access_token


def _make_token_form(fields: dict[str, Any], scope: str | None) -> dict[str, str]:
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


async def _request_token(url: str, form: dict[str, str]) -> TokenResponse:
    import httpx  # here, because few workers need tokens

    from noetl.tools.http.egress import EgressTransport

    try:
        async with (
            httpx.AsyncClient(
                transport=EgressTransport(), timeout=TOKEN_REQUEST_TIMEOUT_S, trust_env=False
            ) as client,
            client.stream("POST", url, data=form, headers={"Accept": "application/json"}) as answer,
        ):
            content = await _read_limited(answer.aiter_bytes())
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{url} is no address: {error}") from None
    except httpx.HTTPError as error:
        raise Unavailable(f"{url} does not answer: {type(error).__name__}") from None
    if answer.status_code in (408, 429) or answer.status_code >= 500:
        raise Unavailable(f"{url} answers {answer.status_code}")
    if not answer.is_success:
        raise InvalidInput(
            f"{url} gives no token: {answer.status_code} {_find_error_code(content)}".rstrip()
        )
    try:
        return msgspec.json.decode(content, type=TokenResponse, strict=False)
    except msgspec.DecodeError:
        raise InvalidInput(f"{url} answers, but with no access_token") from None


async def _read_limited(parts: AsyncIterator[bytes]) -> bytes:
    """Read a body. Raises InvalidInput if it is longer than a token may be."""
    content = b""
    async for part in parts:
        content += part
        if len(content) > MAX_TOKEN_RESPONSE_BYTES:
            raise InvalidInput(
                f"the answer is longer than {MAX_TOKEN_RESPONSE_BYTES} bytes, which is no token"
            )
    return content


def _find_error_code(content: bytes) -> str:
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
