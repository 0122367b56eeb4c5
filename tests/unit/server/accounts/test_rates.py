"""Unknown tokens cost few queries, and nobody else suffers for them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from noetl.accounts.memory import TokensMemory
from noetl.accounts.port import StoredToken, TokenFields
from noetl.accounts.tenants_memory import TenantsMemory
from noetl.accounts.texts import make_token_text
from noetl.accounts.users_memory import UsersMemory
from noetl.audit.memory import AuditMemory
from noetl.model.errors import NotAuthenticated, TooManyRequests
from noetl.model.ids import Tenant
from noetl.server.accounts import authenticator
from noetl.server.accounts.authenticator import (
    MAX_CACHED_S,
    MAX_LOOKUPS_AT_ONCE,
    UNKNOWN_TOKENS,
    Authenticator,
)
from noetl.server.accounts.service import AccountService, make_new_token
from noetl.server.audit.recorder import AuditRecorder

ATTACKER, OFFICE = "203.0.113.7", "198.51.100.1"


class StoppedClock:
    def now(self) -> int:
        return 1_750_000_000_000_000


class CountedTokens(TokensMemory):
    """Answers after a turn of the event loop, as a database does. A link is found before it is taken."""

    lookups = 0

    async def find_token(self, digest: bytes) -> StoredToken | None:
        self.lookups += 1
        await asyncio.sleep(0)
        return await super().find_token(digest)


class CallerWorld:
    """An authenticator whose time stands still, over counted tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = StoppedClock()
        self.time_s = 1_000.0
        self.tokens = CountedTokens(clock, UsersMemory(clock))
        self.known = Authenticator(self.tokens, clock)
        self.accounts = AccountService(
            self.tokens,
            self.known,
            TenantsMemory(clock),
            audit=AuditRecorder(AuditMemory(clock)),
        )
        monkeypatch.setattr(authenticator, "_read_loop_time", lambda: self.time_s)

    async def add_token(self, number: int) -> str:
        text = make_text(number)
        fields = TokenFields(
            kind="api", tenant=Tenant(1), name="x", roles=("viewer",), created_by="x"
        )
        await self.tokens.add_token(make_new_token(text, fields))
        return text


def make_text(number: int) -> str:
    return make_token_text(number.to_bytes(41, "big"))


async def ask_many(
    call: Callable[[int], Awaitable[object]], numbers: range
) -> list[type[BaseException]]:
    asked = await asyncio.gather(*map(call, numbers), return_exceptions=True)
    return [type(each) for each in asked if isinstance(each, BaseException)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> CallerWorld:
    return CallerWorld(monkeypatch)


def test_unknown_tokens_of_an_address_cost_a_bounded_number_of_queries(world: CallerWorld) -> None:
    async def attack() -> None:
        refused = await ask_many(
            lambda n: world.known.identify_bearer(make_text(n), ATTACKER), range(5_000)
        )
        assert len(refused) == 5_000
        assert refused.count(NotAuthenticated) == world.tokens.lookups
        assert world.tokens.lookups < UNKNOWN_TOKENS.tries + MAX_LOOKUPS_AT_ONCE
        with pytest.raises(TooManyRequests) as late:
            await world.known.identify_session(make_text(9_999), ATTACKER)
        assert late.value.retry_after_s == 1
        world.time_s += 3
        before = world.tokens.lookups
        await ask_many(
            lambda n: world.known.identify_bearer(make_text(n), ATTACKER), range(6_000, 6_100)
        )
        assert world.tokens.lookups - before < 3 + MAX_LOOKUPS_AT_ONCE

    asyncio.run(attack())


def test_callers_behind_the_address_of_an_attacker_go_on(world: CallerWorld) -> None:
    async def attack() -> None:
        used, unused = await world.add_token(1), await world.add_token(2)
        await world.known.identify_bearer(used, OFFICE)
        await ask_many(
            lambda n: world.known.identify_bearer(make_text(n), OFFICE), range(100, 1_000)
        )
        for _ in range(3):  # fresh, and when the store has to be asked again
            await world.known.identify_bearer(used, OFFICE)
            world.time_s += MAX_CACHED_S / 2
            await ask_many(
                lambda n: world.known.identify_bearer(make_text(n), OFFICE), range(1_000, 2_000)
            )
        with pytest.raises(TooManyRequests):
            await world.known.identify_bearer(unused, OFFICE)
        await world.known.identify_bearer(unused, "192.0.2.1")

    asyncio.run(attack())


def test_many_valid_callers_of_one_address_may_come_at_once(world: CallerWorld) -> None:
    async def come() -> None:
        texts = [await world.add_token(number) for number in range(500)]
        assert (
            await ask_many(
                lambda n: world.known.identify_bearer(texts[n % 500], OFFICE), range(2_000)
            )
            == []
        )
        assert world.tokens.lookups == 500

    asyncio.run(come())


def test_a_refused_token_that_is_sent_again_costs_no_query(world: CallerWorld) -> None:
    async def send() -> None:
        for _ in range(200):  # a worker whose token was revoked asks for ever
            with pytest.raises(NotAuthenticated):
                await world.known.identify_bearer(make_text(7), OFFICE)
        assert world.tokens.lookups == 1
        world.time_s += MAX_CACHED_S + 1
        with pytest.raises(NotAuthenticated):
            await world.known.identify_bearer(make_text(7), OFFICE)
        assert world.tokens.lookups == 2

    asyncio.run(send())


def test_codes_of_links_cannot_be_tried_without_limit(world: CallerWorld) -> None:
    async def attack() -> None:
        refused = await ask_many(
            lambda n: world.accounts.open_session_by_link(make_text(n), ATTACKER), range(1_000)
        )
        assert set(refused) == {NotAuthenticated, TooManyRequests}
        assert world.tokens.lookups < UNKNOWN_TOKENS.tries + MAX_LOOKUPS_AT_ONCE

    asyncio.run(attack())


def test_memory_for_refusals_is_bounded(world: CallerWorld) -> None:
    async def attack() -> None:
        for number in range(3_000):
            with pytest.raises(NotAuthenticated):
                await world.known.identify_bearer(
                    make_text(number), f"10.0.{number >> 8}.{number & 255}"
                )
        assert len(world.known._refusals) <= authenticator.MAX_CACHED_REFUSALS

    asyncio.run(attack())
