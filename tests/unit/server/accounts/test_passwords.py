"""Hashes of passwords: their costs are stored, and few are computed at once."""

import asyncio
import threading
from typing import Any

import pytest

from noetl.model.errors import InvalidInput, TooManyRequests
from noetl.server.accounts.passwords import (
    MAX_HASHES_AT_ONCE,
    MAX_HASHES_WAITING,
    HashCosts,
    Passwords,
    check_password,
)

CHEAP = HashCosts(passes=1, memory_kib=8, threads=1)


def test_a_hash_names_its_costs_and_not_the_password() -> None:
    async def make() -> tuple[str, str]:
        passwords = Passwords(CHEAP)
        return await passwords.make_hash("correct horse"), await passwords.make_hash(
            "correct horse"
        )

    first, second = asyncio.run(make())
    assert first.startswith("$argon2id$v=19$m=8,t=1,p=1$")
    assert first != second
    assert "correct" not in first


def test_costs_of_today_are_those_of_the_recommendation() -> None:
    """RFC 9106, for memory-constrained environments, with one thread."""
    assert HashCosts() == HashCosts(passes=3, memory_kib=65_536, threads=1)


def test_the_right_password_is_known_in_every_spelling_of_its_letters() -> None:
    async def check() -> list[bool]:
        passwords = Passwords(CHEAP)
        known = await passwords.make_hash("caf\u00e9 au lait \U0001f680")
        tries = [
            "cafe\u0301 au lait \U0001f680",
            "cafe au lait \U0001f680",
            "",
            "\ud800" * 12,
            "x" * 1024,
        ]
        found = [await passwords.is_right(text, known) for text in tries]
        return [*found, await passwords.is_right("caf\u00e9", None)]

    assert asyncio.run(check()) == [True, False, False, False, False, False]


def test_a_broken_hash_lets_nobody_in() -> None:
    async def check() -> bool:
        return await Passwords(CHEAP).is_right("", "no hash")

    assert not asyncio.run(check())


def test_a_hash_of_other_costs_is_outdated() -> None:
    async def make() -> str:
        return await Passwords(CHEAP).make_hash("correct horse")

    known = asyncio.run(make())
    assert not Passwords(CHEAP).is_outdated(known)
    assert Passwords(HashCosts(passes=2, memory_kib=8)).is_outdated(known)


def test_few_hashes_are_computed_at_once_and_few_wait() -> None:
    lock = threading.Lock()
    most = running = 0
    begun = threading.Event()

    class SlowPasswords(Passwords):
        def _compute_hash(self, password: str, known_hash: str | None) -> str:
            nonlocal most, running
            with lock:
                running += 1
                most = max(most, running)
            begun.wait(10)
            with lock:
                running -= 1
            return super()._compute_hash(password, known_hash)

    async def flood() -> list[Any]:
        passwords = SlowPasswords(CHEAP)
        asked = [asyncio.ensure_future(passwords.make_hash("x")) for _ in range(100)]
        await asyncio.sleep(0)
        begun.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    results = asyncio.run(flood())
    refused = [each for each in results if isinstance(each, TooManyRequests)]
    assert len(refused) == 100 - MAX_HASHES_WAITING
    assert most <= MAX_HASHES_AT_ONCE


@pytest.mark.parametrize("length", [0, 1, 11, 1025])
def test_a_password_of_the_wrong_length_is_refused(length: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_password("x" * length)
    assert "xx" not in str(refused.value)


@pytest.mark.parametrize("password", ["x" * 12, " " * 12, "\U0001f680" * 12, "é" * 1024])
def test_a_password_has_no_other_rule(password: str) -> None:
    check_password(password)
