"""What is refused of an issuer that lies, or of somebody who answers in its place."""

import asyncio
import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from noetl.accounts.memory import TokensMemory
from noetl.accounts.tenants_memory import TenantsMemory
from noetl.accounts.users_memory import UsersMemory
from noetl.audit.memory import AuditMemory
from noetl.model.errors import NoetlError, NotPermitted, Unavailable
from noetl.server.accounts.authenticator import Authenticator
from noetl.server.accounts.service import AccountService
from noetl.server.audit.recorder import AuditRecorder
from noetl.server.oidc import provider
from noetl.server.oidc.flow import SignInFlow
from noetl.server.oidc.port import IssuerRefused, IssuerSettings
from noetl.server.oidc.provider import IssuerClient
from noetl.server.oidc.service import OidcService, choose_roles

FLOW = SignInFlow(bytes(range(32)), "/executions")
REDIRECT = "http://127.0.0.1:1/api/oidc/callback"
FIRST = ECKey.generate_key("P-256", {"kid": "first", "use": "sig"})
SECOND = ECKey.generate_key("P-256", {"kid": "second", "use": "sig"})
Sign = Callable[[dict[str, Any]], str]


def sign_with(key: Any, alg: str = "ES256", kid: str = "first") -> Sign:
    return lambda claims: jwt.encode({"alg": alg, "kid": kid}, claims, key, algorithms=[alg])


class FakedIssuer:
    """Answers over real connections what a test tells it to."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.form: dict[str, list[str]] = {}
        self.keys: list[dict[str, Any]] = [FIRST.as_dict(private=False)]
        self.description: dict[str, Any] = {}
        self.claims: dict[str, Any] = {}
        self.user_info: dict[str, Any] = {}
        self.sign: Sign = sign_with(FIRST)
        self.token_status = 200
        self.padding = 0

    def describe(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/auth",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            **self.description,
        }

    def make_claims(self) -> dict[str, Any]:
        now = int(time.time())
        usual = {
            "iss": self.url,
            "aud": "noetl",
            "sub": "1",
            "exp": now + 300,
            "iat": now,
            "nonce": FLOW.nonce,
            "groups": ["data-team"],
            "preferred_username": "ada",
        }
        return {name: value for name, value in {**usual, **self.claims}.items() if value != "-"}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        self.asked.append(path)
        status, body = 200, self.describe()
        if path == "/token":
            length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
            self.form = parse_qs((await reader.readexactly(length)).decode())
            status = self.token_status
            body = {"id_token": self.sign(self.make_claims()), "access_token": "a"}
        elif path == "/keys":
            body = {"keys": self.keys}
        elif path == "/me":
            body = self.user_info
        data = json.dumps(body).encode() + b" " * self.padding
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
        )
        writer.write(data)
        writer.close()


@asynccontextmanager
async def open_issuer() -> AsyncIterator[tuple[FakedIssuer, IssuerClient, IssuerSettings]]:
    issuer = FakedIssuer()
    server = await asyncio.start_server(issuer.answer, "127.0.0.1", 0)
    issuer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    settings = IssuerSettings(
        issuer=issuer.url,
        client_id="noetl",
        client_secret="s",
        scopes="openid",
        roles_claim="groups",
        roles={"data-team": "author"},
        label="x",
    )
    client = IssuerClient(settings)
    async with server:
        yield issuer, client, settings
        await client._http.aclose()


def try_sign_in(prepare: Callable[[FakedIssuer], None], named: str | None = None) -> Any:
    """Who has signed in, or the error."""

    async def sign_in() -> Any:
        async with open_issuer() as (issuer, client, _):
            prepare(issuer)
            try:
                return await client.redeem_code(FLOW, REDIRECT, "code", named)
            except NoetlError as error:
                return error

    return asyncio.run(sign_in())


def claims(**wrong: Any) -> Callable[[FakedIssuer], None]:
    return lambda issuer: issuer.claims.update(wrong)


def described(**wrong: Any) -> Callable[[FakedIssuer], None]:
    return lambda issuer: issuer.description.update(wrong)


def signed(sign: Sign) -> Callable[[FakedIssuer], None]:
    return lambda issuer: setattr(issuer, "sign", sign)


def join_token(head: dict[str, Any], content: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(head).encode(), json.dumps(content).encode(), signature]
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def make_unsigned(content: dict[str, Any]) -> str:
    return join_token({"alg": "none", "kid": "first"}, content)


def sign_with_public_key(content: dict[str, Any]) -> str:
    """The attack on libraries that take the public key for the secret of an HMAC."""
    head = {"alg": "HS256", "kid": "first"}
    signed_part = join_token(head, content).rpartition(".")[0]
    secret = FIRST.as_pem(private=False)
    return join_token(head, content, hmac.digest(secret, signed_part.encode(), "sha256"))


def bring_own_key(content: dict[str, Any]) -> str:
    """A key in the head of the token itself."""
    head = {"alg": "ES256", "kid": "first", "jwk": SECOND.as_dict(private=False)}
    return jwt.encode(head, content, SECOND, algorithms=["ES256"])


def test_a_user_who_has_signed_in_is_known() -> None:
    found = try_sign_in(claims())
    assert (found.subject, found.claims["groups"]) == ("1", ["data-team"])
    assert try_sign_in(claims(aud=["other", "noetl"], azp="noetl")).subject == "1"


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (claims(iss="https://evil.example"), "iss"),
        (claims(iss="-"), "iss"),
        (claims(aud="other"), "aud"),
        (claims(aud="-"), "aud"),
        (claims(aud=["noetl", "other"]), "another client"),
        (claims(azp="other"), "another client"),
        (claims(exp=int(time.time()) - 3600), "expired"),
        (claims(exp="-"), "exp"),
        (claims(exp="tomorrow"), "exp"),
        (claims(nbf=int(time.time()) + 3600), "not valid"),
        (claims(iat=int(time.time()) + 3600), "not valid"),
        (claims(nonce="x" * 43), "another sign-in"),
        (claims(nonce="-"), "nonce"),
        (claims(nonce=["x"]), "another sign-in"),
        (claims(sub="-"), "sub"),
        (claims(sub=""), "sub"),
        (claims(sub="x" * 256), "names no user"),
        (claims(sub=7), "not valid"),
        (signed(make_unsigned), "not valid"),
        (signed(sign_with_public_key), "not valid"),
        (signed(bring_own_key), "not valid"),
        (signed(sign_with(SECOND)), "not valid"),
        (signed(sign_with(SECOND, kid="second")), "not valid"),
        (signed(lambda _: "a.b.c"), "not valid"),
        (signed(lambda _: "a.b.c.d.e"), "not valid"),
        (signed(lambda _: ""), "not valid"),
        (described(issuer="https://evil.example"), "another issuer"),
        (described(jwks_uri="http://evil.example/keys"), "without TLS"),
        (described(token_endpoint="file:///etc/passwd"), "without TLS"),
        (described(authorization_response_iss_parameter_supported=True), "another issuer"),
        (lambda issuer: setattr(issuer, "token_status", 400), "refuses the code"),
        (lambda issuer: setattr(issuer, "token_status", 302), "refuses the code"),
        (lambda issuer: setattr(issuer, "padding", 2_000_000), "too large"),
        (lambda issuer: setattr(issuer, "keys", []), "cannot be read"),
        (lambda issuer: setattr(issuer, "keys", [{"kty": "oct", "k": "eA", "kid": "first"}]), "cannot be read"),
        (lambda issuer: setattr(issuer, "keys", [{"kty": "EC", "kid": "first"}]), "cannot be read"),
    ],
)  # fmt: skip
def test_what_proves_nothing_is_refused(prepare: Callable[[FakedIssuer], None], words: str) -> None:
    found = try_sign_in(prepare)
    assert isinstance(found, IssuerRefused), found
    assert words in str(found)


def test_an_answer_of_another_issuer_is_refused_before_the_code_is_sent_anywhere() -> None:
    """Mix-up: the code of one issuer must not reach another one."""
    asked: list[str] = []
    found = try_sign_in(lambda issuer: setattr(issuer, "asked", asked), "https://evil.example")
    assert "another issuer" in str(found)
    assert "/token" not in asked


def test_keys_with_hmac_are_never_used_even_if_the_issuer_publishes_one() -> None:
    secret = OctKey.import_key("x" * 32)

    def prepare(issuer: FakedIssuer) -> None:
        issuer.keys = [{**secret.as_dict(private=True), "kid": "first"}]
        issuer.sign = sign_with(secret, "HS256")

    assert isinstance(try_sign_in(prepare), IssuerRefused)


def test_keys_may_change_and_are_not_read_for_every_wrong_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(provider.time, "monotonic", lambda: now_s)

    async def rotate() -> None:
        nonlocal now_s
        async with open_issuer() as (issuer, client, _):
            await client.redeem_code(FLOW, REDIRECT, "code", None)
            assert issuer.form["code_verifier"] == [FLOW.verifier]
            assert issuer.form["redirect_uri"] == [REDIRECT]
            issuer.keys = [SECOND.as_dict(private=False)]
            issuer.sign = sign_with(SECOND, kid="second")
            now_s += 11
            await client.redeem_code(FLOW, REDIRECT, "code", None)
            issuer.sign = sign_with(FIRST)  # the key that was withdrawn
            for _ in range(5):
                with pytest.raises(IssuerRefused):
                    await client.redeem_code(FLOW, REDIRECT, "code", None)
            assert issuer.asked.count("/keys") == 2
            assert issuer.asked.count("/.well-known/openid-configuration") == 1

    asyncio.run(rotate())


def test_rsa_keys_are_taken_too() -> None:
    key = RSAKey.generate_key(2048, {"kid": "first"})

    def prepare(issuer: FakedIssuer) -> None:
        issuer.keys = [key.as_dict(private=False)]
        issuer.sign = sign_with(key, "PS256")

    assert try_sign_in(prepare).subject == "1"


def test_claims_of_another_user_are_refused() -> None:
    def prepare(subject: str) -> Callable[[FakedIssuer], None]:
        def change(issuer: FakedIssuer) -> None:
            issuer.description["userinfo_endpoint"] = f"{issuer.url}/me"
            issuer.claims["groups"] = "-"
            issuer.user_info = {"sub": subject, "groups": ["admins"], "aud": "other"}

        return change

    assert "another user" in str(try_sign_in(prepare("2")))
    found = try_sign_in(prepare("1"))
    assert (found.claims["groups"], found.claims["aud"]) == (["admins"], "noetl")


def test_an_issuer_that_is_away_is_said() -> None:
    settings = IssuerSettings("http://127.0.0.1:9", "noetl", None, "openid", "groups", {}, "x")

    async def sign_in() -> None:
        with pytest.raises(Unavailable, match="does not answer"):
            await IssuerClient(settings).make_sign_in_url(FLOW, REDIRECT)

    asyncio.run(sign_in())


@pytest.mark.parametrize(
    ("claim", "given", "roles"),
    [
        ("groups", {"groups": ["a", "b"]}, ("admin", "viewer")),
        ("groups", {"groups": "b"}, ("viewer",)),
        ("groups", {"groups": ["A", "c"]}, ()),
        ("groups", {"groups": {"a": 1}}, ()),
        ("groups", {"groups": [["a"], 1, None]}, ()),
        ("groups", {}, ()),
        ("realm_access.roles", {"realm_access": {"roles": ["a"]}}, ("admin",)),
        ("realm_access.roles", {"realm_access": ["a"]}, ()),
    ],
)
def test_groups_have_the_roles_that_the_operator_gives_them(
    claim: str, given: dict[str, Any], roles: tuple[str, ...]
) -> None:
    mapping = {"a": "admin", "b": "viewer"}
    settings = IssuerSettings("https://x", "noetl", None, "openid", claim, mapping, "x")
    assert choose_roles(settings, given) == roles
    everybody = IssuerSettings("https://x", "noetl", None, "openid", claim, {"*": "viewer"}, "x")
    assert choose_roles(everybody, given) == ("viewer",)


def test_a_user_who_loses_a_group_loses_the_sessions_that_had_its_role() -> None:
    class IssuerClock:
        def now(self) -> int:
            return 1_750_000_000_000_000

    async def sign_in() -> None:
        clock = IssuerClock()
        users = UsersMemory(clock)
        tokens = TokensMemory(clock, users)
        known = Authenticator(tokens, clock)
        async with open_issuer() as (issuer, client, settings):
            accounts = AccountService(
                tokens, known, TenantsMemory(clock), audit=AuditRecorder(AuditMemory(clock))
            )
            service = OidcService(users, accounts, known, settings, client)
            answer = {"state": FLOW.state, "code": "code"}
            opened = await service.end_sign_in(FLOW, answer, REDIRECT, "")
            assert (await known.identify_session(opened.cookie)).identity.roles == {"author"}
            issuer.claims["groups"] = []
            with pytest.raises(NotPermitted, match="ada has no role here"):
                await service.end_sign_in(FLOW, answer, REDIRECT, "")
            with pytest.raises(NoetlError, match="token"):
                await known.identify_session(opened.cookie)

    asyncio.run(sign_in())
