"""Single sign-on with a real issuer (`tests/issuer`): a browser signs in there, and attackers do not."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import pytest

from noetl.runtime.listening import format_address, open_listener
from noetl.server.oidc.port import IssuerSettings
from tests.integration.api.api_server import ApiServer, run_api_server
from tests.issuer.process import run_issuer

FORM = re.compile(r'<form[^>]*action="([^"]+)"')
PROMPT = re.compile(r'name="prompt" value="(\w+)"')


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with run_issuer() as url:
        yield url


@dataclass
class SignInWorld:
    here: ApiServer
    issuer: str

    def open_browser(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.here.url, trust_env=False)

    async def begin(self, browser: httpx.AsyncClient, **query: str) -> str:
        """The address at the issuer to which the page leads."""
        answer = await browser.get("/api/oidc/start", params=query)
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    async def sign_in_at_issuer(self, url: str, name: str) -> str:
        """Fill in the forms of the issuer. Returns the address with which it sends the browser back."""
        callback = f"{self.here.url}/api/oidc/callback"
        async with httpx.AsyncClient(trust_env=False) as there:
            answer = await there.get(url)
            for _ in range(20):
                if answer.is_redirect:
                    url = urljoin(str(answer.url), answer.headers["location"])
                    if url.startswith(callback):
                        return url
                    answer = await there.get(url)
                    continue
                action, prompt = FORM.search(answer.text), PROMPT.search(answer.text)
                assert action is not None, answer.text
                assert prompt is not None, answer.text
                data = {"prompt": prompt[1], "login": name, "password": "x"}
                answer = await there.post(urljoin(str(answer.url), action[1]), data=data)
        raise AssertionError("the issuer does not come to an end")

    async def sign_in(
        self, browser: httpx.AsyncClient, name: str = "ada", **query: str
    ) -> httpx.Response:
        return await browser.get(
            await self.sign_in_at_issuer(await self.begin(browser, **query), name)
        )


@asynccontextmanager
async def open_world(issuer: str) -> AsyncIterator[SignInWorld]:
    """A server that is registered at the issuer."""
    listener = open_listener(port=0)
    callback = f"{format_address(listener)}/api/oidc/callback"
    async with httpx.AsyncClient(trust_env=False) as http:
        body = {"redirect_uris": [callback], "client_name": "NoETL"}
        client: dict[str, Any] = (await http.post(f"{issuer}/reg", json=body)).json()
    settings = IssuerSettings(
        issuer=issuer,
        client_id=client["client_id"],
        client_secret=client["client_secret"],
        scopes="openid profile",
        roles_claim="groups",
        roles={"data-team": "author", "ops": "operator"},
        label="the issuer",
    )
    async with run_api_server(listener=listener, issuer=settings) as here:
        yield SignInWorld(here, issuer)


async def test_a_user_signs_in_at_the_issuer_and_has_the_roles_of_the_groups(issuer: str) -> None:
    async with open_world(issuer) as world, world.open_browser() as browser:
        assert (await browser.get("/api/session/ways")).json() == {"issuer": "the issuer"}
        answer = await world.sign_in(browser, next="/executions?status=failed")
        assert (answer.status_code, answer.headers["location"]) == (
            303,
            "/executions?status=failed",
        )
        cookies = answer.headers.get_list("set-cookie")
        assert [("SameSite=Strict" in each, "HttpOnly" in each) for each in cookies] == [
            (True, True),
            (False, True),
        ]
        session = (await browser.get("/api/session")).json()
        assert (session["name"], session["roles"]) == ("ada", ["author", "operator"])
        (user,) = (await world.here.get("/api/users"))["users"]
        assert (user["name"], user["issuer"]) == ("ada", issuer)
        again = await world.sign_in(browser)
        assert again.headers["location"] == "/executions"
        assert len((await world.here.get("/api/users"))["users"]) == 1


async def test_a_request_to_the_issuer_has_state_nonce_and_a_challenge(issuer: str) -> None:
    async with open_world(issuer) as world, world.open_browser() as browser:
        first, second = [parse_qs(urlsplit(await world.begin(browser)).query) for _ in range(2)]
        assert first["code_challenge_method"] == ["S256"]
        assert first["response_type"] == ["code"]
        for name in ("state", "nonce", "code_challenge"):
            assert len(first[name][0]) == 43
            assert first[name] != second[name]
        assert len({first[name][0] for name in ("state", "nonce", "code_challenge")}) == 3


async def test_an_answer_counts_once_and_in_the_browser_that_began(issuer: str) -> None:
    """A replayed code, a wrong state, and login CSRF: the victim's browser gets the attacker's answer."""
    async with (
        open_world(issuer) as world,
        world.open_browser() as browser,
        world.open_browser() as victim,
    ):
        back = await world.sign_in_at_issuer(await world.begin(browser), "ada")
        forced = await victim.get(back)
        assert (forced.status_code, "not begun in this browser" in forced.text) == (401, True)
        await world.begin(victim)  # also with a sign-in of its own under way
        assert (await victim.get(back)).status_code == 401
        assert "set-cookie" not in forced.headers
        query = {name: value[0] for name, value in parse_qs(urlsplit(back).query).items()}
        for wrong in (
            {**query, "state": "x" * 43},
            {name: value for name, value in query.items() if name != "state"},
            {**query, "iss": "https://evil.example"},
            {name: value for name, value in query.items() if name != "iss"},
            {**query, "code": "x" * 43},
            {"state": query["state"], "error": "access_denied"},
        ):
            refused = await browser.get("/api/oidc/callback", params=wrong)
            assert refused.status_code == 401, wrong
        flow_cookies = dict(browser.cookies)
        assert (await browser.get(back)).status_code == 303
        async with httpx.AsyncClient(
            base_url=world.here.url, trust_env=False, cookies=flow_cookies
        ) as thief:
            replayed = await thief.get(back)
            assert (replayed.status_code, "refuses the code" in replayed.text) == (401, True)
            assert (await thief.get("/api/executions")).status_code == 401


async def test_a_stolen_code_is_of_no_use_without_the_browser_that_began(issuer: str) -> None:
    """Code injection: PKCE binds the code to the verifier of the browser that asked for it."""
    async with (
        open_world(issuer) as world,
        world.open_browser() as victim,
        world.open_browser() as attacker,
    ):
        stolen = parse_qs(
            urlsplit(await world.sign_in_at_issuer(await world.begin(victim), "ada")).query
        )
        own = parse_qs(urlsplit(await world.begin(attacker)).query)
        query = {"code": stolen["code"][0], "iss": issuer, "state": own["state"][0]}
        refused = await attacker.get("/api/oidc/callback", params=query)
        assert (refused.status_code, "refuses the code" in refused.text) == (401, True)


async def test_users_without_a_role_and_disabled_ones_do_not_come_in(issuer: str) -> None:
    async with open_world(issuer) as world, world.open_browser() as browser:
        refused = await world.sign_in(browser, "bob")
        assert (refused.status_code, "bob has no role here" in refused.text) == (403, True)
        assert (await browser.get("/api/executions")).status_code == 401
        assert (await world.sign_in(browser, "ada")).status_code == 303
        assert (await browser.get("/api/executions")).status_code == 200
        assert (await world.here.http.post("/api/users/ada/disable")).status_code == 200
        assert (await browser.get("/api/executions")).status_code == 401
        refused = await world.sign_in(browser, "ada")
        assert (refused.status_code, "ada is disabled" in refused.text) == (403, True)
        password = {"password": "correct horse battery"}
        set_one = await world.here.http.put("/api/users/ada/password", json=password)
        assert set_one.status_code == 409


async def test_the_way_back_leads_to_no_other_site(issuer: str) -> None:
    """`tests/unit/server/oidc/test_flow.py` has more spellings."""
    async with open_world(issuer) as world, world.open_browser() as browser:
        for place in ("//evil.example", "/\\evil.example"):
            answer = await world.sign_in(browser, next=place)
            assert (answer.status_code, answer.headers["location"]) == (303, "/executions")


async def test_without_an_issuer_there_is_no_sign_in_by_one() -> None:
    async with run_api_server() as here:
        assert await here.get("/api/session/ways") == {"issuer": None}
        for path in ("/api/oidc/start", "/api/oidc/callback?code=x&state=y"):
            assert (await here.http.get(path)).status_code == 409
