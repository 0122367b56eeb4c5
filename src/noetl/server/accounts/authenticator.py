"""Finds the caller of a request by its token or by the session of its browser.

A token that was found is trusted for `MAX_CACHED_S` seconds without asking the store again, so a
request costs no query. A revoked token is refused at once by the server that revokes it, and by
others after that time. A token that was refused is refused again without a query for as long.

An address that sends many unknown tokens is refused before they cost a query each. Tokens that were
found before are not: callers behind the same address go on with what they use.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from noetl.accounts.port import StoredToken, TokenKind, TokenStore
from noetl.accounts.texts import read_token_id, sum_token
from noetl.caches import LruCache
from noetl.model.clock import Clock
from noetl.model.errors import NotAuthenticated
from noetl.model.identity import Identity
from noetl.model.ids import Micros
from noetl.server.accounts.throttle import Throttle, TryLimit, make_address_key

MAX_CACHED_S = 5.0
MAX_CACHED_TOKENS = 10_000
MAX_CACHED_REFUSALS = 1_000
MAX_LOOKUPS_AT_ONCE = 8
UNKNOWN_TOKENS = TryLimit(tries=60, seconds_per_try=1.0)  # of an address
MISSING_HINT = (
    "on the machine of the server, noetl token create makes a token; commands and workers send the one of "
    "NOETL_TOKEN, other programs `Authorization: Bearer TOKEN`"
)


Found = TypeVar("Found")


class CachedCaller(Struct, frozen=True):
    identity: Identity
    token_id: str
    parent_id: str | None
    kind: TokenKind
    checked_at: float  # by the clock of the event loop
    expires_at: Micros | None


class CachedRefusal(Struct, frozen=True):
    reason: str
    until: float  # by the clock of the event loop


class Authenticator:
    def __init__(self, tokens: TokenStore, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._callers: LruCache[bytes, CachedCaller] = LruCache(MAX_CACHED_TOKENS)
        self._refusals: LruCache[bytes, CachedRefusal] = LruCache(MAX_CACHED_REFUSALS)
        self._throttle = Throttle(UNKNOWN_TOKENS)
        self._lookups = asyncio.Semaphore(MAX_LOOKUPS_AT_ONCE)

    async def identify_bearer(self, text: str, address: str = "") -> CachedCaller:
        """The caller with this token, which comes from this address.

        Raises `NotAuthenticated`, or `TooManyRequests` if the address has sent too many unknown ones.
        """
        return await self._identify(text, "api", address)

    async def identify_session(self, text: str, address: str = "") -> CachedCaller:
        """The caller with this cookie. Raises as `identify_bearer` does."""
        return await self._identify(text, "session", address)

    async def look_up(
        self, address: str, lookup: Callable[[], Awaitable[Found | None]]
    ) -> Found | None:
        """Ask the store for what a caller from this address names. None counts as a failure of the address.

        Few lookups run at once, so an address is stopped soon after its failures are too many.
        """
        key = make_address_key(address)
        async with self._lookups:
            self._throttle.check_tries(key, _read_loop_time())
            found = await lookup()
        if found is None:
            self._throttle.count_failure(key, _read_loop_time())
        return found

    def forget_token(self, token_id: str) -> None:
        """Ask the store again when this token, or a session of it, is used next."""
        for digest in [key for key in self._callers if self._has_id(key, token_id)]:
            self._callers.pop(digest)

    def _has_id(self, digest: bytes, token_id: str) -> bool:
        caller = self._callers.peek(digest)
        return caller is not None and token_id in (caller.token_id, caller.parent_id)

    async def _identify(self, text: str, kind: TokenKind, address: str) -> CachedCaller:
        if read_token_id(text) is None:
            raise make_missing_token("the token is not one of NoETL")
        digest = sum_token(text)
        caller = self._callers.get(digest)
        if caller is None:
            caller = await self._find_new_caller(digest, address)
        elif not self._is_fresh(caller):
            caller = await self._read_caller(digest)
        if caller.kind != kind:
            raise make_missing_token("the token is of another kind")
        return caller

    def _is_fresh(self, caller: CachedCaller) -> bool:
        if caller.expires_at is not None and self._clock.now() >= caller.expires_at:
            return False
        return _read_loop_time() < caller.checked_at + MAX_CACHED_S

    async def _find_new_caller(self, digest: bytes, address: str) -> CachedCaller:
        """Ask the store for a token that this server has not seen, unless it was refused just now."""
        refusal = self._refusals.get(digest)
        if refusal is not None and _read_loop_time() < refusal.until:
            raise make_missing_token(refusal.reason)

        async def find_caller() -> CachedCaller | None:
            known = self._callers.get(digest)  # by a request that came before and waited less
            if known is not None and self._is_fresh(known):
                return known
            with suppress(NotAuthenticated):
                return await self._read_caller(digest)
            return None

        caller = await self.look_up(address, find_caller)
        if caller is None:
            refusal = self._refusals.get(digest)
            raise make_missing_token(
                "the token is not valid" if refusal is None else refusal.reason
            )
        return caller

    async def _read_caller(self, digest: bytes) -> CachedCaller:
        checked_at = _read_loop_time()
        token = await self._tokens.find_token(digest)
        if token is None or not token.is_valid:
            self._callers.pop(digest)
            reason = _explain_refusal(token)
            self._refusals.put(digest, CachedRefusal(reason, checked_at + MAX_CACHED_S))
            raise make_missing_token(reason)
        caller = CachedCaller(
            identity=make_identity(token),
            token_id=token.token_id,
            parent_id=token.parent_id,
            kind=token.kind,
            checked_at=checked_at,
            expires_at=token.expires_at,
        )
        self._callers.put(digest, caller)
        return caller


def _read_loop_time() -> float:
    return asyncio.get_running_loop().time()


def make_identity(token: StoredToken) -> Identity:
    """The caller with this token. A session stands for the token that opened it, so sessions that
    are opened from a session end with that token too."""
    root_id = token.parent_id or token.token_id
    pools = None if token.pools is None else frozenset(token.pools)
    return Identity(token.tenant, frozenset(token.roles), token.name, pools, root_id)


def make_missing_token(why: str) -> NotAuthenticated:
    return NotAuthenticated(why, hint=MISSING_HINT)


def _explain_refusal(token: StoredToken | None) -> str:
    if token is None:
        return "the token is not known here"
    if token.revoked_at is not None:
        return "the token has been revoked"
    return "the token has expired"
