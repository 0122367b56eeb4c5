"""Hashes and checks passwords with argon2id, a few at a time, in threads.

A hash names its costs. One with other costs than these is replaced when its user signs in next.
"""

import asyncio
import unicodedata
from functools import cached_property
from importlib import import_module
from typing import Any

from msgspec import Struct

from noetl.model.errors import InvalidInput, TooManyRequests

MIN_PASSWORD_CHARS = 12
MAX_PASSWORD_CHARS = 1024
MAX_HASHES_AT_ONCE = 2  # each takes 64 MB and a processor
MAX_HASHES_WAITING = 32


class HashCosts(Struct, frozen=True):
    """The costs of a hash: passes, memory, threads. A hash takes about a tenth of a second."""

    passes: int = 3
    memory_kib: int = 64 * 1024
    threads: int = 1


class Passwords:
    """Use it in one event loop."""

    def __init__(self, costs: HashCosts | None = None) -> None:
        self._costs = costs or HashCosts()
        self._turns = asyncio.Semaphore(MAX_HASHES_AT_ONCE)
        self._waiting = 0

    async def make_hash(self, password: str) -> str:
        return await self._run_hash(password, None)

    async def is_right(self, password: str, known_hash: str | None) -> bool:
        """Whether it is the password of this hash.

        Without a hash it takes as long, so that the time does not tell which users there are.
        """
        computed = await self._run_hash(password, known_hash)
        return known_hash is not None and computed == known_hash

    def is_outdated(self, known_hash: str) -> bool:
        """Whether the hash has other costs than those of today."""
        return bool(self._hasher.check_needs_rehash(known_hash))

    async def _run_hash(self, password: str, known_hash: str | None) -> str:
        """A new hash; or, with a known one, that hash if the password is right, else an empty text."""
        if self._waiting >= MAX_HASHES_WAITING:
            raise TooManyRequests("too many sign-ins at once", hint="try again in a second")
        self._waiting += 1
        try:
            async with self._turns:
                return await asyncio.to_thread(self._compute_hash, password, known_hash)
        finally:
            self._waiting -= 1

    def _compute_hash(self, password: str, known_hash: str | None) -> str:
        secret = unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
        if known_hash is None:
            return str(self._hasher.hash(secret))
        errors = import_module("argon2.exceptions")
        try:
            self._hasher.verify(known_hash, secret)
        except (errors.VerificationError, errors.InvalidHashError):
            return ""
        return known_hash

    @cached_property
    def _hasher(self) -> Any:
        """The library is loaded for the first password: most starts of a server need none."""
        costs = self._costs
        argon2 = import_module("argon2")
        return argon2.PasswordHasher(costs.passes, costs.memory_kib, costs.threads)


def check_password(password: str) -> None:
    """Raise `InvalidInput` if nobody may have this password."""
    length = len(unicodedata.normalize("NFC", password))
    if length < MIN_PASSWORD_CHARS:
        raise InvalidInput(
            f"a password has at least {MIN_PASSWORD_CHARS} characters",
            hint="several words are easy to remember and hard to guess",
        )
    if length > MAX_PASSWORD_CHARS:
        raise InvalidInput(f"a password has at most {MAX_PASSWORD_CHARS} characters")
