"""Tokens by OAuth 2: client credentials, or a refresh token where the credential has one.

A worker asks for a token once and keeps it, in memory only, until shortly before it ends.
"""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from noetl.model.errors import InvalidInput, Unavailable

MARGIN = 30.0  # seconds before its end in which a token is not used any more
LASTS = 300.0  # seconds, when nobody says
MOST = 1_000
PATIENCE = 30.0
LONGEST = 1 << 20  # bytes of an answer


class TokenResponse(msgspec.Struct):
    access_token: str
    expires_in: float | None = None


@dataclass
class Tokens:
    """Of one worker."""

    _known: dict[tuple[str, ...], tuple[str, float]] = field(default_factory=dict)

    async def get(
        self, url: str, fields: dict[str, Any], scope: str | None, lasts: float | None
    ) -> str:
        """`fields` are those of the credential. Raises InvalidInput when it is refused, Unavailable when nobody answers."""
        form = _form(fields, scope)
        key = (url, *sorted(f"{name}={value}" for name, value in form.items()))
        token, until = self._known.get(key, ("", 0.0))
        if time.monotonic() < until:
            return token
        answer = await _asked(url, form)
        told = answer.expires_in if answer.expires_in is not None else LASTS
        self._known.pop(key, None)
        if len(self._known) >= MOST:
            self._known.pop(next(iter(self._known)))
        self._known[key] = (
            answer.access_token,
            time.monotonic() + max(0.0, min(told, lasts or told) - MARGIN),
        )
        return answer.access_token


def _form(fields: dict[str, Any], scope: str | None) -> dict[str, str]:
    wanted = ("client_id", "client_secret", "refresh_token", "audience")
    form = {name: str(fields[name]) for name in wanted if fields.get(name)}
    if "client_id" not in form:
        raise InvalidInput("a token needs `client_id`, in the credential or in `map`")
    form["grant_type"] = "refresh_token" if "refresh_token" in form else "client_credentials"
    return form if scope is None else {**form, "scope": scope}


async def _asked(url: str, form: dict[str, str]) -> TokenResponse:
    import httpx  # only who needs a token pays for it

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
    """As much as a token may take; the rest of a longer answer is not read."""
    found = b""
    async for part in parts:
        found += part
        if len(found) > LONGEST:
            raise InvalidInput(f"the answer is longer than {LONGEST} bytes, which is no token")
    return found


def _reason(content: bytes) -> str:
    """`invalid_client` and the like; nothing else of what it says, which may repeat what it was sent."""
    try:
        said = str(msgspec.json.decode(content).get("error", ""))
    except (msgspec.DecodeError, AttributeError):
        return ""
    return said if said.replace("_", "").isalnum() and len(said) < 50 else ""
