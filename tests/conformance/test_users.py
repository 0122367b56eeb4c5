"""Users: what is stored of them, and that their sessions end with their grant."""

import asyncio
from typing import Any

from noetl.accounts.users import IssuedUser, NewUser, UserChange
from noetl.model.ids import Tenant
from tests.conformance.conftest import PortWorld
from tests.conformance.test_tokens import make_token

SECOND = 1_000_000


def make_user(name: str, **more: Any) -> NewUser:
    fields: dict[str, Any] = {
        "user_id": f"id-{name}",
        "grant_id": f"user.{name}",
        "tenant": Tenant(1),
        "name": name,
        "roles": ("viewer",),
        "password_hash": "hash",
        "created_by": "ada",
    }
    return NewUser(**{**fields, **more})


def make_issued(subject: str, **more: Any) -> IssuedUser:
    fields: dict[str, Any] = {
        "user_id": f"id-{subject}",
        "grant_id": f"user.{subject}",
        "tenant": Tenant(1),
        "name": "ada",
        "roles": ("viewer",),
        "issuer": "https://issuer",
        "subject": subject,
    }
    return IssuedUser(**{**fields, **more})


async def test_a_user_is_found_by_name(world: PortWorld) -> None:
    added = await world.users.add_user(make_user("ada", roles=("admin", "viewer")))
    assert added is not None
    assert (added.roles, added.issuer, added.created_at) == (
        ("admin", "viewer"),
        None,
        world.clock.time,
    )
    assert await world.users.find_user("ada") == added
    assert await world.users.find_user("bob") is None


async def test_a_name_is_taken_once_in_all_tenants(world: PortWorld) -> None:
    new = [make_user("ada", user_id=str(n), grant_id=f"user.{n}", tenant=Tenant(n)) for n in (1, 2)]
    added = await asyncio.gather(*map(world.users.add_user, new))
    assert [user is None for user in added].count(True) == 1


async def test_users_are_listed_by_name_and_of_one_tenant(world: PortWorld) -> None:
    for name, tenant in (("bob", 1), ("ada", 1), ("eve", 2)):
        await world.users.add_user(make_user(name, tenant=Tenant(tenant)))
    await world.users.put_issued_user(make_issued("s", name="bob"))
    assert [user.user_id for user in await world.users.list_users(Tenant(1))] == [
        "id-ada",
        "id-bob",
        "id-s",
    ]


async def test_a_change_keeps_what_it_does_not_name(world: PortWorld) -> None:
    await world.users.add_user(make_user("ada"))
    change = UserChange(grant_id="user.2", roles=("author",))
    assert await world.users.change_user(Tenant(2), "id-ada", change) is None
    changed = await world.users.change_user(Tenant(1), "id-ada", change)
    assert changed is not None
    assert changed.ended_grant_id == "user.ada"
    assert (changed.user.roles, changed.user.password_hash) == (("author",), "hash")
    await world.pass_time(SECOND)
    disabled = await world.users.change_user(
        Tenant(1), "id-ada", UserChange(grant_id="user.3", is_disabled=True)
    )
    assert disabled is not None
    assert disabled.user.disabled_at == world.clock.time
    await world.pass_time(SECOND)
    again = await world.users.change_user(
        Tenant(1), "id-ada", UserChange(grant_id="user.4", is_disabled=True, password_hash="other")
    )
    assert again is not None
    assert (again.user.disabled_at, again.user.password_hash) == (
        disabled.user.disabled_at,
        "other",
    )
    enabled = await world.users.change_user(
        Tenant(1), "id-ada", UserChange(grant_id="user.5", is_disabled=False)
    )
    assert enabled is not None
    assert enabled.user.disabled_at is None
    assert await world.users.find_user("ada") == enabled.user


async def test_a_hash_is_replaced_unless_the_password_was_changed(world: PortWorld) -> None:
    await world.users.add_user(make_user("ada"))
    await world.users.replace_hash("id-ada", "older", "newer")
    await world.users.replace_hash("id-ada", "hash", "better")
    user = await world.users.find_user("ada")
    assert user is not None
    assert (user.password_hash, user.grant_id) == ("better", "user.ada")


async def test_sessions_and_links_end_with_the_grant_of_their_user(world: PortWorld) -> None:
    await world.users.add_user(make_user("ada"))
    session = make_token("s", kind="session", parent_id="user.ada", lifetime_s=60)
    link = make_token("l", kind="link", parent_id="user.ada", lifetime_s=60)
    forged = make_token("f", kind="session", parent_id="user.nobody", lifetime_s=60)
    for token in (session, link, forged):
        await world.tokens.add_token(token)

    async def is_valid(digest: bytes) -> bool:
        found = await world.tokens.find_token(digest)
        return found is not None and found.is_valid

    assert await is_valid(session.digest)
    assert not await is_valid(forged.digest)
    await world.users.change_user(Tenant(1), "id-ada", UserChange(grant_id="user.2"))
    assert not await is_valid(session.digest)
    assert await world.tokens.take_link(link.digest) is None
    # A session that is stored after the change, by a sign-in that began before it:
    late = make_token("t", kind="session", parent_id="user.ada", lifetime_s=60)
    await world.tokens.add_token(late)
    assert not await is_valid(late.digest)


async def test_sessions_of_a_disabled_user_are_not_valid(world: PortWorld) -> None:
    await world.users.add_user(make_user("ada"))
    change = UserChange(grant_id="user.2", is_disabled=True)
    await world.users.change_user(Tenant(1), "id-ada", change)
    session = make_token("s", kind="session", parent_id="user.2", lifetime_s=60)
    await world.tokens.add_token(session)
    found = await world.tokens.find_token(session.digest)
    assert found is not None
    assert not found.is_valid


async def test_a_user_of_an_issuer_is_known_by_the_subject(world: PortWorld) -> None:
    first = await world.users.put_issued_user(make_issued("1"))
    assert (first.user.user_id, first.user.password_hash) == ("id-1", None)
    other = await world.users.put_issued_user(make_issued("2"))
    assert other.user.user_id == "id-2"
    renamed = await world.users.put_issued_user(
        make_issued("1", user_id="new", grant_id="user.new", name="Ada L.")
    )
    assert (renamed.user.user_id, renamed.user.name) == ("id-1", "Ada L.")
    assert renamed.user.grant_id == renamed.ended_grant_id == "user.1"
    demoted = await world.users.put_issued_user(
        make_issued("1", grant_id="user.new", roles=("operator",))
    )
    assert (demoted.user.grant_id, demoted.ended_grant_id) == ("user.new", "user.1")
    assert await world.users.find_user("ada") is None


async def test_a_new_user_of_an_issuer_who_signs_in_twice_at_once_is_one(world: PortWorld) -> None:
    new = [make_issued("1", user_id=f"id-{n}", grant_id=f"user.{n}") for n in range(8)]
    put = await asyncio.gather(*map(world.users.put_issued_user, new))
    assert len({changed.user.user_id for changed in put}) == 1
    assert len(await world.users.list_users(Tenant(1))) == 1
