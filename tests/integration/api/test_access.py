"""Who may call what: every route with every kind of caller, and with other spellings of its path."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from noetl.accounts.port import TokenFields
from noetl.accounts.texts import make_token_text
from noetl.model.identity import ROLES, Identity, Permission, needs
from noetl.runtime.node import Node
from noetl.server.accounts.authenticator import UNKNOWN_TOKENS
from noetl.server.accounts.service import make_new_token
from noetl.server.http.application import create_router
from noetl.server.http.routing import RoutedEndpoint
from tests.integration.api.api_server import NOOP, ApiServer, run_api_server

# The whole list of what callers without a token may ask. A route that is added to it is looked at.
PUBLIC = {
    ("GET", "/health"),
    ("GET", "/api/health"),
    ("GET", "/ready"),
    ("POST", "/api/session"),  # signs in
    ("DELETE", "/api/session"),  # signs out
    ("GET", "/api/session/ways"),  # what the sign-in page shows
    ("GET", "/api/oidc/start"),  # leads to the issuer
    ("GET", "/api/oidc/callback"),  # comes back with its answer, and proves who signs in
    ("POST", "/api/hooks/{name}"),  # has a signature instead of a token
    ("POST", "/api/tenants/{tenant}/hooks/{name}"),  # the same
}
# Which permission each route needs. A route that is not here fails the test.
READ, OPERATE, WRITE = Permission.READ, Permission.OPERATE, Permission.WRITE
ADMINISTER, WORK = Permission.ADMINISTER, Permission.WORK
NEEDS: dict[str, Permission | tuple[Permission, ...]] = {
    "GET /metrics": READ,
    "GET /api/openapi.json": READ,
    "GET /api/session": READ,
    "POST /api/session/links": READ,
    "POST /api/tokens": ADMINISTER,
    "GET /api/tokens": ADMINISTER,
    "DELETE /api/tokens/{token_id}": ADMINISTER,
    "POST /api/tenants": ADMINISTER,
    "GET /api/tenants": ADMINISTER,
    "GET /api/tenants/{tenant}": ADMINISTER,
    "PUT /api/tenants/{tenant}/quotas": ADMINISTER,
    "POST /api/users": ADMINISTER,
    "GET /api/users": ADMINISTER,
    "POST /api/users/{user}/disable": ADMINISTER,
    "POST /api/users/{user}/enable": ADMINISTER,
    "PUT /api/users/{user}/password": ADMINISTER,
    "PUT /api/users/{user}/roles": ADMINISTER,
    "GET /api/audit": ADMINISTER,
    "GET /api/audit/chain": ADMINISTER,
    "POST /api/credentials": ADMINISTER,
    "POST /api/credentials/rewrap": ADMINISTER,
    "GET /api/credentials": WRITE,
    "DELETE /api/credentials/{name}": ADMINISTER,
    "POST /api/catalog/register": WRITE,
    "POST /api/context/render": WRITE,
    "POST /api/schedules": WRITE,
    "DELETE /api/schedules/{name}": WRITE,
    "POST /api/schedules/{name}/pause": OPERATE,
    "POST /api/schedules/{name}/resume": OPERATE,
    "POST /api/hooks": WRITE,
    "DELETE /api/hooks/{name}": WRITE,
    "PUT /api/state/value/{name}/{path}": WRITE,
    "DELETE /api/state/value/{name}/{path}": WRITE,
    "POST /api/worker/exchange": WORK,
    "GET /api/worker/playbooks/{hash}": WORK,
    "GET /api/worker/manifests/{id}": (WORK, READ),
    "GET /api/worker/payloads/{ref_id}": (WORK, READ),
    "PUT /api/worker/payloads": WORK,
    "POST /api/worker/orphans/{execution_id}": WORK,
    "GET /api/worker/credentials/{name}": WORK,
    "POST /api/worker/logs": WORK,
}
OPERATIONS = re.compile(
    r"POST (/api/execute|/api/executions/execute|/api/executions/bulk|/api/executions/\{execution_id\}/"
    r"(cancel|pause|resume|release|retry|rerun|signals/\{name\})|/api/events(/batch)?)"
    r"|(POST|DELETE) /api/executions/\{execution_id\}/result/\{step\}/pin"
)
GONE = re.compile(r"\w+ (/api)?/queue/.+")
EVERYONE = re.compile(r"GET /api/session")


def find_needed(method: str, path: str) -> tuple[Permission, ...]:
    """The permissions of which a caller of this route needs one."""
    name = f"{'GET' if method == 'HEAD' else method} {path.replace(':path', '')}"
    if name in NEEDS:
        needed = NEEDS[name]
        return needed if isinstance(needed, tuple) else (needed,)
    if GONE.fullmatch(name):
        return READ, WORK
    if OPERATIONS.fullmatch(name):
        return (OPERATE,)
    assert method in ("GET", "HEAD") or path.endswith("/preview"), f"{name} is not listed"
    return (READ,)


def list_endpoints(node: Node) -> list[tuple[str, str, RoutedEndpoint]]:
    router = create_router(
        node.services,
        node.metrics,
        node.worker_routes,
        None,  # type: ignore[arg-type]
    )
    return list(router.list_endpoints())


def fill_path(path: str) -> str:
    """A path of the route. The names are such that a careless check of texts would let them pass."""
    values = {
        "execution_id": "1",
        "name": "health",
        "path": "x/ready",
        "step": "health",
        "hash": "0" * 64,
        "id": "1",
        "ref_id": "1",
        "token_id": "metrics",
        "batch": "health",
    }

    def fill(match: re.Match[str]) -> str:
        return values.get(match[1], "health")

    return re.sub(r"\{(\w+)(?::\w+)?\}", fill, path)


@asynccontextmanager
async def open_callers() -> AsyncIterator[tuple[ApiServer, dict[str, str | None]]]:
    """A server, and the header of every kind of caller that no route but the public ones answers."""
    async with run_api_server() as here:
        revoked = await here.make_token("admin")
        for token in (await here.get("/api/tokens"))["tokens"]:
            if revoked.startswith(f"noetl_{token['token_id']}_"):
                done = await here.http.delete(f"/api/tokens/{token['token_id']}")
                assert done.status_code == 200
        link = (await here.http.post("/api/session/links")).json()["code"]
        yield (
            here,
            {
                "no token": None,
                "a word": "Bearer x",
                "an unknown token": f"Bearer {make_token_text(bytes(41))}",
                "another scheme": "Basic YWRtaW46YWRtaW4=",
                "a revoked token": f"Bearer {revoked}",
                "a link": f"Bearer {link}",
                "half a token": f"Bearer {here.token[:-1]}",
                "a token with a tail": f"Bearer {here.token} x",
            },
        )


async def ask(
    here: ApiServer, method: str, path: str, header: str | None, **more: Any
) -> httpx.Response:
    headers = {} if header is None else {"Authorization": header}
    async with httpx.AsyncClient(base_url=here.url, trust_env=False) as http:
        return await http.request(method, path, headers=headers, **more)


async def test_what_is_public_is_listed() -> None:
    async with run_api_server() as here:
        public = {(method, path) for method, path, each in list_endpoints(here.node) if each.public}
    assert public == PUBLIC


async def test_without_a_valid_token_no_route_answers() -> None:
    async with (
        open_callers() as (here, callers),
        httpx.AsyncClient(base_url=here.url, trust_env=False) as http,
    ):
        for method, path, _ in list_endpoints(here.node):
            if (method, path) in PUBLIC:
                continue
            for caller, header in callers.items():
                headers = {} if header is None else {"Authorization": header}
                answer = await http.request(method, fill_path(path), headers=headers)
                assert answer.status_code == 401, (caller, method, path, answer.text)
                if method != "HEAD":
                    assert answer.json()["code"] == "NOT_AUTHENTICATED"
                assert answer.headers["www-authenticate"] == "Bearer"


async def test_an_expired_token_is_refused() -> None:
    async with run_api_server() as here:
        token = await here.make_token("viewer", lifetime_s=60)
        header = f"Bearer {token}"
        assert (await ask(here, "GET", "/api/executions", header)).status_code == 200
        clock: Any = here.node.ports.clock
        later = clock.now() + 61_000_000
        clock.now = lambda: later  # for the store and for the cache of the server
        answer = await ask(here, "GET", "/api/executions", header)
        assert (answer.status_code, answer.json()["detail"]) == (401, "the token has expired")


@pytest.mark.parametrize("role", [*ROLES, ""])
async def test_every_route_is_for_the_roles_that_have_its_permission(role: str) -> None:
    async with run_api_server() as here:
        if role:
            token = await here.make_token(role)
        else:
            token = await make_token_without_roles(here)
        granted = ROLES.get(role, frozenset())
        wrong: list[tuple[str, int]] = []
        async with httpx.AsyncClient(base_url=here.url, trust_env=False) as http:
            for method, path, _ in list_endpoints(here.node):
                name = f"{method} {path}"
                if (method, path) in PUBLIC or EVERYONE.fullmatch(name):
                    continue
                request = http.build_request(
                    method,
                    fill_path(path),
                    params=QUERIES.get(path),
                    json=make_body(path) if method in ("POST", "PUT") else None,
                    headers={"Authorization": f"Bearer {token}"},
                )
                answer = await http.send(request, stream=True)  # a stream has no end
                await answer.aclose()
                is_refused = answer.status_code == 403
                may = bool(granted.intersection(find_needed(method, path)))
                if is_refused == may:
                    wrong.append((name, answer.status_code))
        assert wrong == []


async def make_token_without_roles(here: ApiServer) -> str:
    """No command makes such a token; a row of the database may have lost its roles."""
    text = make_token_text(b"r" * 41)
    fields = TokenFields(kind="api", tenant=1, name="nobody", roles=(), created_by="test")  # type: ignore[arg-type]
    await here.node.ports.tokens.add_token(make_new_token(text, fields))
    return text


QUERIES: dict[str, dict[str, str]] = {  # what these routes do not do without
    "/api/catalog/diff/{path:path}": {"older": "1"},
    "/api/events/status": {"execution_id": "1", "request": "x"},
    "/api/events/batch/status": {"execution_id": "1", "request": "x", "count": "1"},
    "/api/executions/{execution_id}/steps/{step}/times": {"first": "0"},
}


def make_body(path: str) -> dict[str, Any]:
    """A body that the route accepts: a refusal must not be one of the body."""
    bodies: dict[str, dict[str, Any]] = {
        "/api/tokens": {"name": "x", "roles": ["viewer"]},
        "/api/tenants": {"name": "x"},
        "/api/users": {"name": "x", "roles": ["viewer"], "password": "x" * 12},
        "/api/users/{user}/password": {"password": "x" * 12},
        "/api/users/{user}/roles": {"roles": ["viewer"]},
        "/api/credentials": {"name": "x", "kind": "bearer", "data": {"token": "t"}},
        "/api/catalog/register": {"content": NOOP},
        "/api/execute": {"path": "tests/simple"},
        "/api/executions/execute": {"path": "tests/simple"},
        "/api/executions/bulk": {"do": "cancel", "ids": ["1"]},
        "/api/context/render": {"template": "x", "context": {}},
        "/api/events": {"execution_id": "1", "name": "go"},
        "/api/events/batch": {"execution_id": "1", "events": [{"name": "go"}]},
        "/api/schedules": {"name": "x", "path": "tests/simple", "every": "1h"},
        "/api/hooks": {"name": "x", "path": "tests/simple"},
        "/api/state/value/{name}/{path:path}": {"value": 1},
        "/api/executions/{execution_id}/signals/{name}": {"payload": 1},
    }
    return bodies.get(path, {})


SPELLINGS = (
    "/api/executions/",
    "/api//executions",
    "//api/executions",
    "/api/./executions",
    "/api/x/../executions",
    "/api/%65xecutions",
    "/API/executions",
    "/api/executions;x=health",
    "/api/executions/health",
    "/api/executions%2fhealth",
    "/api/executions%00",
    "/api/executions/1/events/health",
    "/api/credentials/health",
    "/api/worker/credentials/health",
    "/api/worker/credentials/%68ealth",
    "/api/worker/credentials/x%2f..%2fhealth",
    "/health/../api/executions",
    "/ready/../api/worker/credentials/x",
    "/health/api/executions",
    "/metrics",
    "/metrics/",
    "/metrics?x=/health",
    "/api/openapi.json",
    "/api/catalog/playbooks/health",
    "/api/state/value/ready/health",
    "/api/tokens?next=/health",
    "/api/tokens/ready",
    "/queue/lease",
)


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_other_spellings_of_a_path_open_nothing(spelling: str) -> None:
    """Without a token, an answer is a refusal or the page, which is the same for everybody."""
    async with run_api_server() as here:
        for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
            status, head = await send_raw(here, method, spelling)
            is_page = status == 200 and b"text/html" in head
            assert is_page or status in (400, 401, 404, 405), (method, spelling, status)
            assert not (is_page and method not in ("GET", "HEAD"))


async def send_raw(here: ApiServer, method: str, path: str) -> tuple[int, bytes]:
    """Send the path as it is: a client would tidy it up."""
    host, port = here.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    )
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[0]


async def test_a_worker_token_takes_commands_of_its_pools_only() -> None:
    async with run_api_server() as here:
        token = await here.make_token("worker", pools=["gpu"])
        header = f"Bearer {token}"
        request = {"worker": "w", "incarnation": "1", "free": 1}
        for pools, status in ((["gpu"], 200), (["cpu"], 403), (["gpu", "cpu"], 403), ([], 200)):
            answer = await ask(
                here, "POST", "/api/worker/exchange", header, json={**request, "pools": pools}
            )
            assert answer.status_code == status, (pools, answer.text)


async def test_a_browser_signs_in_by_a_link_once_and_signs_out() -> None:
    async with run_api_server() as here:
        link = (await here.http.post("/api/session/links")).json()
        assert link["path"] == f"/login?code={link['code']}"
        async with httpx.AsyncClient(base_url=here.url, trust_env=False) as browser:
            signed_in = await browser.post("/api/session", json={"code": link["code"]})
            assert (signed_in.status_code, signed_in.json()["name"]) == (200, "local")
            cookie = signed_in.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert (await browser.get("/api/executions")).status_code == 200
            again = await ask(here, "POST", "/api/session", None, json={"code": link["code"]})
            assert (again.status_code, "used or has expired" in again.text) == (401, True)
            assert (await browser.delete("/api/session")).json() == {"ended": True}
            stolen = {"Cookie": cookie.partition(";")[0]}
            async with httpx.AsyncClient(base_url=here.url, trust_env=False) as thief:
                answer = await thief.get("/api/executions", headers=stolen)
                assert answer.status_code == 401
        wrong: list[dict[str, Any]] = [{}, {"token": "x", "code": "y"}, {"token": None}]
        for body in wrong:
            refused = await ask(here, "POST", "/api/session", None, json=body)
            assert refused.status_code == 422


async def test_a_session_ends_with_the_token_that_opened_it() -> None:
    async with run_api_server() as here:
        token = await here.make_token("viewer")
        async with httpx.AsyncClient(base_url=here.url, trust_env=False) as browser:
            signed_in = await browser.post("/api/session", json={"token": token})
            assert signed_in.json()["roles"] == ["viewer"]
            assert (await browser.post("/api/execute", json={"path": "x"})).status_code == 403
            assert (await browser.get("/api/executions")).status_code == 200
            code = (await browser.post("/api/session/links")).json()["code"]
            async with httpx.AsyncClient(base_url=here.url, trust_env=False) as second:
                assert (await second.post("/api/session", json={"code": code})).status_code == 200
                unused = (await second.post("/api/session/links")).json()["code"]
                token_id = token.split("_")[1]
                assert (await here.http.delete(f"/api/tokens/{token_id}")).status_code == 200
                for each in (browser, second):  # also the session that a session opened
                    assert (await each.get("/api/executions")).status_code == 401
                late = await second.post("/api/session", json={"code": unused})
                assert late.status_code == 401
        refused = await ask(here, "POST", "/api/session", None, json={"token": token})
        assert refused.status_code == 401
        worker = await here.make_token("worker")
        refused = await ask(here, "POST", "/api/session", None, json={"token": worker})
        assert refused.status_code == 403


async def test_an_address_that_sends_unknown_tokens_has_to_wait_and_callers_in_it_go_on() -> None:
    async with run_api_server() as here, httpx.AsyncClient(base_url=here.url) as http:
        assert (await here.http.get("/api/executions")).status_code == 200
        answers: list[httpx.Response] = []
        for number in range(2 * UNKNOWN_TOKENS.tries):
            text = make_token_text(number.to_bytes(41, "big"))
            if number % 2:
                headers = {"Authorization": f"Bearer {text}"}
            else:
                headers = {"Cookie": f"noetl_session_{here.url.rpartition(':')[2]}={text}"}
            answers.append(await http.get("/api/executions", headers=headers))
        assert {answer.status_code for answer in answers} == {401, 429}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["code"] == "TOO_MANY_REQUESTS"
        assert refused.headers["retry-after"] == "1"
        assert (await here.http.get("/api/executions")).status_code == 200


async def test_a_token_is_revoked_by_its_id_or_its_name_and_a_session_is_no_token() -> None:
    async with run_api_server() as here, httpx.AsyncClient(base_url=here.url) as browser:
        signed_in = await browser.post("/api/session", json={"token": here.token})
        session_id = signed_in.headers["set-cookie"].split("noetl_")[2].split("_")[0]
        refused = await here.http.delete(f"/api/tokens/{session_id}")
        assert refused.status_code == 404
        assert (await browser.get("/api/executions")).status_code == 200
        for name in ("ci", "twin", "twin"):
            body = {"name": name, "roles": ["viewer"]}
            assert (await here.http.post("/api/tokens", json=body)).status_code == 201
        assert (await here.http.delete("/api/tokens/twin")).status_code == 409
        assert (await here.http.delete("/api/tokens/nobody")).status_code == 404
        revoked = await here.http.delete("/api/tokens/ci")
        assert (revoked.status_code, revoked.json()["valid"]) == (200, False)
        assert (await here.http.delete("/api/tokens/ci")).status_code == 404


async def test_a_hook_without_a_secret_needs_an_operator() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        hook = {"name": "open", "path": "tests/simple"}
        assert (await here.http.post("/api/hooks", json=hook)).status_code == 201
        viewer, operator = await here.make_token("viewer"), await here.make_token("operator")
        for header, status in (
            (None, 401),
            (f"Bearer {viewer}", 403),
            (f"Bearer {operator}", 202),
            (f"Bearer {make_token_text(bytes(41))}", 401),
        ):
            answer = await ask(here, "POST", "/api/hooks/open", header, json={})
            assert answer.status_code == status, answer.text
        unknown = await ask(here, "POST", "/api/hooks/none", None, json={})
        assert unknown.status_code == 401  # nobody learns which hooks there are


async def test_requests_of_other_origins_are_refused_with_a_cookie_too() -> None:
    async with run_api_server() as here:
        code = (await here.http.post("/api/session/links")).json()["code"]
        async with httpx.AsyncClient(base_url=here.url, trust_env=False) as browser:
            await browser.post("/api/session", json={"code": code})
            host = here.url.removeprefix("http://")
            for headers, status in (
                ({"Origin": f"http://{host}"}, 200),
                ({"Origin": "http://localhost:3000"}, 403),
                ({"Origin": "http://127.0.0.1:1"}, 403),
                ({"Sec-Fetch-Site": "cross-site"}, 403),
                ({"Sec-Fetch-Site": "same-site"}, 403),
                ({"Sec-Fetch-Site": "same-origin"}, 200),
                ({"Sec-Fetch-Site": "none"}, 200),
                ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
            ):
                answer = await browser.get("/api/executions", headers=headers)
                assert answer.status_code == status, headers
                assert answer.headers["cross-origin-resource-policy"] == "same-origin"


async def test_large_heads_and_half_requests_are_cut_off() -> None:
    async with run_api_server() as here:
        status, _ = await send_raw(here, "GET", f"/health?{'x' * 70_000}")
        assert status == 400
        host, port = here.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ")
        sent = 0
        with suppress(ConnectionError):
            while sent < 40_000_000 and not reader.at_eof():
                writer.write(b"x" * 100_000)
                await writer.drain()
                sent += 100_000
        assert sent < 40_000_000
        writer.close()


def test_a_method_refuses_before_it_does_anything() -> None:
    class Things:
        done = 0

        @needs(Permission.WRITE)
        async def change(self, identity: Identity) -> None:
            self.done += 1

    things = Things()
    viewer = Identity(1, frozenset({"viewer"}), "ada")  # type: ignore[arg-type]
    with pytest.raises(Exception, match="ada \\(viewer\\) may not do this"):
        things.change(viewer)
    assert things.done == 0
