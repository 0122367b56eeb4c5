"""Users sign in with a name and a password, and are treated alike when they cannot."""

import asyncio
from typing import Any

import httpx
import pytest

from noetl.model.identity import LOCAL_IDENTITY
from noetl.server.accounts.passwords import HashCosts, Passwords
from noetl.server.accounts.users import NAME_TRIES, USER_ROLES
from tests.integration.api.api_server import ApiServer, run_api_server

PASSWORD = "correct horse battery"
CHEAP = HashCosts(passes=1, memory_kib=8, threads=1)
WRONG = (401, "the name or the password is wrong")


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes that take no time: what is tested here does not depend on their costs."""
    monkeypatch.setattr("noetl.server.accounts.passwords.HashCosts", lambda: CHEAP)


async def add_user(here: ApiServer, name: str = "ada", *roles: str) -> None:
    body = {"name": name, "roles": roles or ["operator"], "password": PASSWORD}
    answer = await here.http.post("/api/users", json=body)
    assert answer.status_code == 201, answer.text
    assert PASSWORD not in answer.text
    assert "argon2" not in answer.text


def open_browser(here: ApiServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=here.url, trust_env=False)


async def sign_in(browser: httpx.AsyncClient, name: str, password: str) -> tuple[int, Any]:
    answer = await browser.post("/api/session", json={"name": name, "password": password})
    body = answer.json()
    return answer.status_code, body.get("detail", body.get("name"))


async def test_a_user_signs_in_by_name_and_password() -> None:
    async with run_api_server() as here, open_browser(here) as browser:
        await add_user(here, "Ada@Example.org", "operator")
        assert await sign_in(browser, "ADA@example.org", PASSWORD) == (200, "ada@example.org")
        session = (await browser.get("/api/session")).json()
        assert (session["name"], session["roles"]) == ("ada@example.org", ["operator"])
        assert (await browser.get("/api/tokens")).status_code == 403
        assert (await browser.delete("/api/session")).json() == {"ended": True}
        assert (await browser.get("/api/executions")).status_code == 401


async def test_nobody_learns_why_a_sign_in_fails() -> None:
    async with run_api_server() as here, open_browser(here) as browser:
        await add_user(here, "ada")
        await add_user(here, "bob")
        assert (await here.http.post("/api/users/bob/disable")).status_code == 200
        texts = set()
        for name, password in (
            ("ada", "wrong password"),
            ("eve", PASSWORD),
            ("bob", PASSWORD),
            ("ada", ""),
            ("", ""),
            ("no such\nname", "x"),
            ("ada'--", PASSWORD),
        ):
            answer = await browser.post("/api/session", json={"name": name, "password": password})
            assert "set-cookie" not in answer.headers
            texts.add((answer.status_code, answer.text))
        assert len(texts) == 1
        assert await sign_in(browser, "eve", PASSWORD) == WRONG


async def test_unknown_users_and_wrong_passwords_cost_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[bool] = []

    class CountedPasswords(Passwords):
        def _compute_hash(self, password: str, known_hash: str | None) -> str:
            computed.append(True)
            return super()._compute_hash(password, known_hash)

    monkeypatch.setattr("noetl.server.accounts.users.Passwords", CountedPasswords)
    async with run_api_server() as here, open_browser(here) as browser:
        await add_user(here, "ada")
        for name in ("ada", "eve", "not a name at all"):
            computed.clear()
            assert await sign_in(browser, name, "wrong password") == WRONG
            assert len(computed) == 1, name


async def test_tries_are_limited_per_name_and_the_answer_says_how_long() -> None:
    async with run_api_server() as here, open_browser(here) as browser:
        for name in ("ada", "bob"):
            await add_user(here, name)
        for _ in range(NAME_TRIES.tries):
            assert await sign_in(browser, "ada", "wrong password") == WRONG
        refused = await browser.post("/api/session", json={"name": "Ada", "password": PASSWORD})
        assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_REQUESTS")
        assert 0 < int(refused.headers["retry-after"]) <= NAME_TRIES.seconds_per_try
        assert (await sign_in(browser, "bob", PASSWORD))[0] == 200
        assert (await here.http.get("/api/executions")).status_code == 200


async def test_tries_are_limited_per_address_and_at_once() -> None:
    async with run_api_server() as here, open_browser(here) as browser:
        await add_user(here, "ada")
        assert (await sign_in(browser, "ada", PASSWORD))[0] == 200
        async with open_browser(here) as attacker:
            tries = [sign_in(attacker, f"user{n}", "wrong password") for n in range(60)]
            statuses = [status for status, _ in await asyncio.gather(*tries)]
            assert statuses.count(401) <= 30
            assert statuses.count(429) >= 30
            assert (await sign_in(attacker, "ada", PASSWORD))[0] == 429
        assert (await browser.get("/api/executions")).status_code == 200  # a session goes on


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "disable", None),
        ("PUT", "password", {"password": "another password"}),
        ("PUT", "roles", {"roles": ["viewer"]}),
    ],
)
async def test_sessions_end_when_the_user_changes(method: str, path: str, body: Any) -> None:
    async with run_api_server() as here, open_browser(here) as browser, open_browser(here) as other:
        for name in ("ada", "bob"):
            await add_user(here, name)
        await sign_in(browser, "ada", PASSWORD)
        await sign_in(other, "bob", PASSWORD)
        code = (await browser.post("/api/session/links")).json()["code"]
        async with open_browser(here) as second:
            assert (await second.post("/api/session", json={"code": code})).status_code == 200
            unused = (await second.post("/api/session/links")).json()["code"]
            changed = await here.http.request(method, f"/api/users/ada/{path}", json=body)
            assert changed.status_code == 200, changed.text
            for each in (browser, second):
                assert (await each.get("/api/executions")).status_code == 401
            late = await second.post("/api/session", json={"code": unused})
            assert late.status_code == 401
        assert (await other.get("/api/executions")).status_code == 200


async def test_a_changed_password_is_the_only_one_and_a_disabled_user_can_come_back() -> None:
    async with run_api_server() as here, open_browser(here) as browser:
        await add_user(here, "ada")
        new = {"password": "another password"}
        assert (await here.http.put("/api/users/ada/password", json=new)).status_code == 200
        assert await sign_in(browser, "ada", PASSWORD) == WRONG
        assert (await sign_in(browser, "ada", "another password"))[0] == 200
        await here.http.post("/api/users/ada/disable")
        assert await sign_in(browser, "ada", "another password") == WRONG
        await here.http.post("/api/users/ada/enable")
        assert (await browser.get("/api/executions")).status_code == 401  # the old session is over
        assert (await sign_in(browser, "ada", "another password"))[0] == 200


async def test_a_sign_in_ends_the_session_that_the_browser_had() -> None:
    """A cookie that somebody put into the browser before is of no use afterwards."""
    async with run_api_server() as here, open_browser(here) as browser:
        await add_user(here, "ada")
        await sign_in(browser, "ada", PASSWORD)
        planted = dict(browser.cookies)
        await sign_in(browser, "ada", PASSWORD)
        assert dict(browser.cookies) != planted
        async with httpx.AsyncClient(
            base_url=here.url, trust_env=False, cookies=planted
        ) as attacker:
            assert (await attacker.get("/api/executions")).status_code == 401
        assert (await browser.get("/api/executions")).status_code == 200


async def test_a_hash_with_old_costs_is_replaced_at_the_next_sign_in() -> None:
    async with run_api_server() as here, open_browser(here) as browser:
        await add_user(here, "ada")
        users = here.node.ports.users
        before = await users.find_user("ada")
        assert before is not None
        newer = Passwords(HashCosts(passes=2, memory_kib=16))
        here.node.services.users._passwords = newer
        assert (await sign_in(browser, "ada", PASSWORD))[0] == 200
        after = await users.find_user("ada")
        assert after is not None
        assert after.password_hash is not None
        assert "m=16,t=2" in after.password_hash
        assert after.grant_id == before.grant_id
        assert (await sign_in(browser, "ada", PASSWORD))[0] == 200


async def test_what_no_user_can_be_is_refused_with_the_reason() -> None:
    async with run_api_server() as here:
        await add_user(here, "ada")
        good = {"name": "bob", "roles": ["viewer"], "password": PASSWORD}
        wrong: list[tuple[dict[str, Any], int, str]] = [
            ({"name": "ADA"}, 409, "already"),
            ({"name": "-x"}, 422, "letters"),
            ({"name": "a b"}, 422, "letters"),
            ({"roles": []}, 422, "a role"),
            ({"roles": ["worker"]}, 422, "'worker'"),
            ({"roles": ["root"]}, 422, "'root'"),
            ({"password": "short"}, 422, "12 characters"),
            ({"password": "x" * 1025}, 422, "1024"),
        ]
        for change, status, words in wrong:
            answer = await here.http.post("/api/users", json={**good, **change})
            assert answer.status_code == status, answer.text
            assert words in answer.text
            assert PASSWORD not in answer.text
        assert (await here.http.post("/api/users/eve/disable")).status_code == 404
        assert USER_ROLES == ("viewer", "operator", "author", "admin")


async def test_administrators_see_and_change_users_of_their_tenant_only() -> None:
    async with run_api_server() as here:
        await add_user(here, "ada")
        stranger = await here.make_foreign_header()
        async with httpx.AsyncClient(base_url=here.url, trust_env=False, headers=stranger) as http:
            assert (await http.get("/api/users")).json() == {"users": []}
            assert (await http.post("/api/users/ada/disable")).status_code == 404
        (user,) = (await here.get("/api/users"))["users"]
        assert (user["name"], user["disabled_at"], user["issuer"]) == ("ada", None, None)
        by_id = await here.http.put(
            f"/api/users/{user['user_id']}/roles", json={"roles": ["admin"]}
        )
        assert by_id.json()["roles"] == ["admin"]


async def test_a_sign_in_form_of_another_site_signs_nobody_in() -> None:
    """Login CSRF: a page of another site must not sign this browser in as somebody else."""
    async with run_api_server() as here, open_browser(here) as browser:
        await add_user(here, "mallory")
        body = {"name": "mallory", "password": PASSWORD}
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            answer = await browser.post("/api/session", json=body, headers=headers)
            assert answer.status_code == 403
        form = await browser.post("/api/session", data=body)
        plain = await browser.post(
            "/api/session",
            content='{"name": "mallory", "password": "correct horse battery"}',
            headers={"Content-Type": "text/plain"},
        )
        assert (form.status_code, plain.status_code) == (422, 422)
        assert (await browser.get("/api/executions")).status_code == 401


async def test_the_service_asks_for_an_administrator() -> None:
    async with run_api_server() as here:
        users = here.node.services.users
        made = await users.create_user(LOCAL_IDENTITY, "ada", ["admin"], PASSWORD)
        assert made.created_by == "local"
