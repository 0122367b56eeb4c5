"""Gets tokens by OAuth 2: with a refresh token, or else with client credentials.

A worker keeps a token in memory until shortly before it expires.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from noetl.caches import ExpiringCache
from noetl.model.errors import InvalidInput
from noetl.tools.egress.guard import EgressGuard

EXPIRY_MARGIN_S = 30.0  # seconds before its expiry in which a token is not used
DEFAULT_TOKEN_LIFETIME_S = 300.0  # seconds that a token lasts if the server does not say
MAX_CACHED_TOKENS = 1_000


@dataclass
class TokenCache:
    """The tokens of one worker."""

    guard: EgressGuard = field(default_factory=EgressGuard)
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
        # Here, because few workers need tokens.
        from noetl.tools.credentials.token_requests import request_token

        response = await request_token(self.guard, url, form)
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
