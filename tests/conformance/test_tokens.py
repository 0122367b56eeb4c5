"""Tokens: what is stored of them, and when they are valid."""

import asyncio
from typing import Any

from noetl.accounts.port import HOME_CREATOR, REVOKED_RETENTION_S, NewToken
from noetl.model.ids import Tenant
from tests.conformance.conftest import PortWorld

SECOND = 1_000_000


def make_token(name: str, **more: Any) -> NewToken:
    fields: dict[str, Any] = {
        "token_id": name,
        "digest": name.encode().ljust(32, b"."),
        "tenant": Tenant(1),
        "kind": "api",
        "name": name,
        "roles": ("operator", "viewer"),
        "created_by": "ada",
    }
    return NewToken(**{**fields, **more})


async def test_a_token_is_found_by_its_sum(world: PortWorld) -> None:
    added = await world.tokens.add_token(make_token("a", pools=("cpu", "gpu")))
    assert (added.token_id, added.roles, added.pools) == (
        "a",
        ("operator", "viewer"),
        ("cpu", "gpu"),
    )
    assert (added.created_at, added.expires_at, added.is_valid) == (world.clock.time, None, True)
    assert await world.tokens.find_token(b"a".ljust(32, b".")) == added
    assert await world.tokens.find_token(b"b".ljust(32, b".")) is None


async def test_a_token_that_is_there_stays_as_it_is(world: PortWorld) -> None:
    first = await world.tokens.add_token(make_token("a"))
    again = await world.tokens.add_token(make_token("a", token_id="b", roles=("admin",)))
    assert again == first
    await world.tokens.revoke_token(Tenant(1), "a", "api")
    assert not (await world.tokens.add_token(make_token("a"))).is_valid


async def test_processes_that_add_the_same_token_at_once_agree(world: PortWorld) -> None:
    added = await asyncio.gather(*(world.tokens.add_token(make_token("a")) for _ in range(8)))
    assert {token.token_id for token in added} == {"a"}
    assert len(await world.tokens.list_tokens(Tenant(1))) == 1


async def test_a_token_expires(world: PortWorld) -> None:
    token = make_token("a", lifetime_s=60)
    added = await world.tokens.add_token(token)
    assert added.expires_at == world.clock.time + 60 * SECOND
    await world.pass_time(59 * SECOND)
    found = await world.tokens.find_token(token.digest)
    assert found is not None
    assert found.is_valid
    await world.pass_time(SECOND)
    found = await world.tokens.find_token(token.digest)
    assert found is not None
    assert not found.is_valid


async def test_a_token_is_revoked_with_its_sessions(world: PortWorld) -> None:
    parent = make_token("a")
    session = make_token("s", kind="session", parent_id="a", lifetime_s=60)
    other = make_token("b")
    for token in (parent, session, other):
        await world.tokens.add_token(token)
    assert await world.tokens.revoke_token(Tenant(2), "a", "api") is None
    assert await world.tokens.revoke_token(Tenant(1), "x", "api") is None
    revoked = await world.tokens.revoke_token(Tenant(1), "a", "api")
    assert revoked is not None
    assert (revoked.token_id, revoked.revoked_at, revoked.is_valid) == (
        "a",
        world.clock.time,
        False,
    )
    valid = [await world.tokens.find_token(each.digest) for each in (parent, session, other)]
    assert [token is not None and token.is_valid for token in valid] == [False, False, True]
    await world.pass_time(SECOND)
    again = await world.tokens.revoke_token(Tenant(1), "a", "api")
    assert again is not None
    assert again.revoked_at == revoked.revoked_at


async def test_a_session_ends_when_the_token_that_opened_it_expires(world: PortWorld) -> None:
    session = make_token("s", kind="session", parent_id="a", lifetime_s=3600)
    link = make_token("l", kind="link", parent_id="a", lifetime_s=3600)
    for token in (make_token("a", lifetime_s=60), session, link):
        await world.tokens.add_token(token)
    found = await world.tokens.find_token(session.digest)
    assert found is not None
    assert found.is_valid
    await world.pass_time(60 * SECOND)
    found = await world.tokens.find_token(session.digest)
    assert found is not None
    assert not found.is_valid
    assert await world.tokens.take_link(link.digest) is None


async def test_tokens_are_listed_without_sessions_and_of_one_tenant(world: PortWorld) -> None:
    for name in ("a", "b"):
        await world.tokens.add_token(make_token(name))
        await world.pass_time(SECOND)
    await world.tokens.add_token(make_token("s", kind="session", lifetime_s=60))
    await world.tokens.add_token(make_token("t", tenant=Tenant(2)))
    listed = await world.tokens.list_tokens(Tenant(1))
    assert [token.token_id for token in listed] == ["b", "a"]


async def test_a_link_is_taken_once_while_it_is_valid(world: PortWorld) -> None:
    link = make_token("l", kind="link", parent_id="a", lifetime_s=60)
    await world.tokens.add_token(link)
    taken = await asyncio.gather(*(world.tokens.take_link(link.digest) for _ in range(5)))
    assert [token.parent_id for token in taken if token is not None] == ["a"]
    assert await world.tokens.find_token(link.digest) is None
    token = make_token("t")
    await world.tokens.add_token(token)
    assert await world.tokens.take_link(token.digest) is None
    late = make_token("m", kind="link", lifetime_s=60)
    await world.tokens.add_token(late)
    await world.pass_time(60 * SECOND)
    assert await world.tokens.take_link(late.digest) is None


async def test_expired_sessions_are_forgotten_and_tokens_are_not(world: PortWorld) -> None:
    session = make_token("s", kind="session", lifetime_s=60)
    token = make_token("t", lifetime_s=60)
    await world.tokens.add_token(session)
    await world.tokens.add_token(token)
    await world.pass_time(61 * SECOND)
    await world.tokens.add_token(make_token("u"))
    assert await world.tokens.find_token(session.digest) is None
    assert await world.tokens.find_token(token.digest) is not None


async def test_only_a_token_of_the_named_kind_is_revoked(world: PortWorld) -> None:
    session = make_token("s", kind="session", parent_id="a", lifetime_s=60)
    for token in (make_token("a"), session):
        await world.tokens.add_token(token)
    assert await world.tokens.revoke_token(Tenant(1), "s", "api") is None
    found = await world.tokens.find_token(session.digest)
    assert found is not None
    assert found.is_valid
    assert await world.tokens.revoke_token(Tenant(1), "s", "session") is not None


async def test_tokens_are_forgotten_long_after_they_were_revoked(world: PortWorld) -> None:
    for name, creator in (("a", "ada"), ("b", "ada"), ("home", HOME_CREATOR)):
        await world.tokens.add_token(make_token(name, created_by=creator))
    for name in ("a", "home"):
        await world.tokens.revoke_token(Tenant(1), name, "api")
    await world.pass_time((REVOKED_RETENTION_S - 1) * SECOND)
    await world.tokens.add_token(make_token("c"))
    assert len(await world.tokens.list_tokens(Tenant(1))) == 4
    await world.pass_time(SECOND)
    await world.tokens.add_token(make_token("d"))
    listed = await world.tokens.list_tokens(Tenant(1))
    assert {token.token_id for token in listed} == {"b", "c", "d", "home"}
    still = await world.tokens.add_token(make_token("home"))  # as a server does at its start
    assert not still.is_valid
