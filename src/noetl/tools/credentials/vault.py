"""Reads secrets from HashiCorp Vault, or OpenBao, over HTTP.

A name is a path, as `secret/data/db`, and may end with `#FIELD`. Secrets of the engine KV version 2
and those with a lease are read. The operator of the worker sets the address, how the worker logs in,
and which paths playbooks may read (`vault_settings.py`).

A secret is kept in memory for `cache_s`, or for its lease if that is shorter. It is read again, or its
lease renewed, in the last fifth of that time: if Vault is away for a moment, the value in memory lasts
until it ends. The worker's own token is renewed in the same way. Errors show paths and never values.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from noetl.caches import LruCache
from noetl.model.errors import InvalidInput, NotFound, Unavailable
from noetl.tools.credentials.vault_settings import VaultSettings, read_vault_settings
from noetl.tools.http.bodies import ACCEPTED_ENCODINGS, BodyProblem, read_limited_body

MAX_VAULT_ANSWER_BYTES = 1 << 20
MAX_CACHED_SECRETS = 200
REFRESH_FRACTION = 0.8  # of its lifetime, after which a secret or token is fetched again
UNAVAILABLE_STATUSES = frozenset((408, 412, 429, 472, 473))


class Login(msgspec.Struct):
    """What Vault says of a token."""

    client_token: str = ""
    lease_duration: float = 0
    renewable: bool = False


class TokenData(msgspec.Struct):
    ttl: float = 0
    renewable: bool = False


class VaultAnswer(msgspec.Struct):
    lease_id: str = ""
    lease_duration: float = 0
    renewable: bool = False
    data: Any = None
    auth: Login | None = None


class SecretLifetime(msgspec.Struct, frozen=True):
    """When something is to be fetched again, and when it must no longer be used."""

    refresh_at: float
    expires_at: float


class VaultToken(msgspec.Struct, frozen=True):
    value: str
    lifetime: SecretLifetime
    renewable: bool = False


class CachedSecret(msgspec.Struct, frozen=True):
    fields: dict[str, Any]
    lifetime: SecretLifetime
    lease_id: str = ""  # empty: it cannot be renewed


class VaultRefused(InvalidInput):
    """Vault answers that this token may not do this."""


class VaultSecrets:
    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._clock = clock
        self._token: VaultToken | None = None
        self._secrets: LruCache[str, CachedSecret] = LruCache(MAX_CACHED_SECRETS)
        # Items of a loop ask for the same secret at the same time: one request answers all of them.
        self._running: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def get(self, name: str) -> Any:
        """All fields of a secret, or the one after `#`."""
        path, _, field = name.partition("#")
        settings = await asyncio.to_thread(read_vault_settings, self._environment)
        settings.check_path(path)
        fields = await self._read_shared(settings, path)
        if not field:
            return dict(fields)
        if field not in fields:
            raise NotFound(
                f"the secret {path!r} in Vault has no field {field!r}; it has {', '.join(sorted(fields))}"
            )
        return fields[field]

    # ---- secrets ---------------------------------------------------------------------------------

    async def _read_shared(self, settings: VaultSettings, path: str) -> dict[str, Any]:
        running = self._running.get(path)
        if running is None:
            running = asyncio.create_task(self._read_cached(settings, path))
            self._running[path] = running
            running.add_done_callback(lambda ended: self._end_reading(path, ended))
        return await asyncio.shield(running)  # one that is cancelled does not cancel the others

    def _end_reading(self, path: str, ended: "asyncio.Task[dict[str, Any]]") -> None:
        del self._running[path]
        if not ended.cancelled():
            ended.exception()  # those who wait have it; nobody may be left

    async def _read_cached(self, settings: VaultSettings, path: str) -> dict[str, Any]:
        cached = self._secrets.get(path)
        now = self._clock()
        if cached is not None and now < cached.lifetime.refresh_at:
            return cached.fields
        try:
            secret = await self._renew_or_read(settings, path, cached, now)
        except Unavailable:
            if cached is None or now >= cached.lifetime.expires_at:
                raise
            return cached.fields  # it is valid for a while yet
        except InvalidInput:
            self._secrets.pop(path)
            raise
        self._secrets.put(path, secret)
        return secret.fields

    async def _renew_or_read(
        self, settings: VaultSettings, path: str, cached: CachedSecret | None, now: float
    ) -> CachedSecret:
        if cached is not None and cached.lease_id and now < cached.lifetime.expires_at:
            renewed = await self._renew_lease(settings, cached)
            if renewed is not None:
                return renewed
        answer = await self._request(settings, "GET", path)
        fields = _find_fields(answer.data)
        if fields is None:
            raise NotFound(f"the secret {path!r} in Vault was deleted, or has no fields")
        seconds = settings.cache_s
        if answer.lease_id and answer.lease_duration > 0:
            seconds = answer.lease_duration
        lease_id = answer.lease_id if answer.renewable else ""
        return CachedSecret(fields, self._start_lifetime(seconds), lease_id)

    async def _renew_lease(
        self, settings: VaultSettings, cached: CachedSecret
    ) -> CachedSecret | None:
        """The secret with a renewed lease. None if it has to be read again."""
        try:
            answer = await self._request(
                settings, "POST", "sys/leases/renew", {"lease_id": cached.lease_id}
            )
        except InvalidInput:  # it has ended, or may not be renewed
            return None
        if answer.lease_duration <= 0:
            return None
        lifetime = self._start_lifetime(answer.lease_duration)
        return CachedSecret(cached.fields, lifetime, cached.lease_id if answer.renewable else "")

    def _start_lifetime(self, seconds: float) -> SecretLifetime:
        now = self._clock()
        return SecretLifetime(now + seconds * REFRESH_FRACTION, now + seconds)

    # ---- the worker's own token ------------------------------------------------------------------

    async def _request(
        self, settings: VaultSettings, method: str, path: str, body: Any = None
    ) -> VaultAnswer:
        """Send a request with the worker's token. A token that was revoked is replaced once."""
        token = await self._get_token(settings)
        try:
            return await send_vault_request(settings, method, path, token.value, body)
        except VaultRefused:
            self._token = None
            replacement = await self._get_token(settings)
            if replacement.value == token.value:
                raise
        return await send_vault_request(settings, method, path, replacement.value, body)

    async def _get_token(self, settings: VaultSettings) -> VaultToken:
        token = self._token
        now = self._clock()
        if token is not None and now < token.lifetime.refresh_at:
            return token
        if token is not None and token.renewable and now < token.lifetime.expires_at:
            self._token = await self._renew_token(settings, token)
        else:
            self._token = None
        if self._token is None:
            self._token = await self._log_in(settings)
        return self._token

    async def _renew_token(self, settings: VaultSettings, token: VaultToken) -> VaultToken | None:
        """The renewed token. None if another one is needed."""
        try:
            answer = await send_vault_request(
                settings, "POST", "auth/token/renew-self", token.value, {}
            )
        except InvalidInput:
            return None
        except Unavailable:
            return token  # Vault will not answer the request either, and says so better
        if answer.auth is None or answer.auth.lease_duration <= 0:
            return None
        lifetime = self._start_lifetime(answer.auth.lease_duration)
        return VaultToken(token.value, lifetime, answer.auth.renewable)

    async def _log_in(self, settings: VaultSettings) -> VaultToken:
        if settings.role_id:
            return await self._log_in_by_role(settings)
        value = await asyncio.to_thread(settings.read_token)
        try:
            answer = await send_vault_request(settings, "GET", "auth/token/lookup-self", value)
            known = msgspec.convert(answer.data, TokenData, strict=False)
        except (InvalidInput, msgspec.ValidationError):
            known = TokenData()  # a token may lack the right to look at itself
        lifetime = self._start_lifetime(known.ttl or settings.cache_s)
        return VaultToken(value, lifetime, known.renewable)

    async def _log_in_by_role(self, settings: VaultSettings) -> VaultToken:
        secret_id = await asyncio.to_thread(settings.read_secret_id)
        body = {"role_id": settings.role_id, "secret_id": secret_id}
        path = f"auth/{settings.approle_mount}/login"
        try:
            answer = await send_vault_request(settings, "POST", path, None, body)
        except InvalidInput as error:
            raise InvalidInput(
                f"Vault refuses the login of the worker by AppRole: {error}",
                hint="check NOETL_VAULT_ROLE_ID and the file of NOETL_VAULT_SECRET_ID_FILE",
            ) from None
        if answer.auth is None or not answer.auth.client_token:
            raise InvalidInput(f"{settings.address} answers the login by AppRole without a token")
        login = answer.auth
        lifetime = self._start_lifetime(login.lease_duration or settings.cache_s)
        return VaultToken(login.client_token, lifetime, login.renewable)


def _find_fields(data: Any) -> dict[str, Any] | None:
    """The fields of an answer. Version 2 of KV wraps them, beside the metadata of the version."""
    if not isinstance(data, dict):
        return None
    if data.keys() == {"data", "metadata"} and isinstance(data["metadata"], dict):
        data = data["data"]
    return data if isinstance(data, dict) and data else None


async def send_vault_request(
    settings: VaultSettings, method: str, path: str, token: str | None, body: Any = None
) -> VaultAnswer:
    """Send one request. Raises NotFound, VaultRefused, InvalidInput or Unavailable.

    What Vault answers is not shown, because it may repeat what it was sent. Redirects are not
    followed, because the token goes to the address of the settings only.
    """
    headers = {"Accept-Encoding": ACCEPTED_ENCODINGS, "X-Vault-Request": "true"}
    if token is not None:
        headers["X-Vault-Token"] = token
    if settings.namespace:
        headers["X-Vault-Namespace"] = settings.namespace
    url = f"{settings.address}/v1/{quote(path)}"
    try:
        async with (
            httpx.AsyncClient(
                verify=settings.make_ssl_context(), timeout=settings.timeout_s, trust_env=False
            ) as client,
            asyncio.timeout(settings.timeout_s),
            client.stream(method, url, headers=headers, json=body) as answer,
        ):
            content = await read_limited_body(answer, MAX_VAULT_ANSWER_BYTES)
    except BodyProblem as problem:
        raise InvalidInput(f"the answer of Vault for {path!r}: {problem}") from None
    except httpx.InvalidURL as error:
        raise InvalidInput(f"NOETL_VAULT_ADDR is no address: {error}") from None
    except TimeoutError:
        raise Unavailable(
            f"Vault at {settings.address} did not answer within {settings.timeout_s:g} s"
        ) from None
    except httpx.LocalProtocolError:
        raise InvalidInput(
            "the token for Vault, or the namespace, has characters that no header may have"
        ) from None
    except httpx.HTTPError as error:
        raise Unavailable(
            f"Vault at {settings.address} does not answer: {type(error).__name__}"
        ) from None
    _check_status(settings, path, answer.status_code)
    try:
        return msgspec.json.decode(content or b"{}", type=VaultAnswer, strict=False)
    except msgspec.DecodeError:
        raise InvalidInput(f"{settings.address} does not answer as Vault does") from None


def _check_status(settings: VaultSettings, path: str, status: int) -> None:
    if 200 <= status < 300:
        return
    if status == 503:
        raise Unavailable(f"Vault at {settings.address} is sealed or being maintained (503)")
    if status in UNAVAILABLE_STATUSES or status >= 500:
        raise Unavailable(f"Vault at {settings.address} answers {status}")
    if status == 404:
        raise NotFound(
            f"there is no secret {path!r} in Vault; a path of KV version 2 has `data` after its mount, as secret/data/db"
        )
    if status in (401, 403):
        raise VaultRefused(
            f"Vault refuses {path!r} ({status})",
            hint="the token of the worker is invalid, or its policy does not let it read this path",
        )
    if 300 <= status < 400:
        raise InvalidInput(
            f"Vault at {settings.address} answers with a redirect ({status}), which the token does not follow",
            hint="set NOETL_VAULT_ADDR to the address of the active server",
        )
    raise InvalidInput(f"Vault at {settings.address} answers {status} for {path!r}")
