"""Talks to an issuer of OpenID Connect, and checks what it says.

Signatures are checked by `joserfc`, with keys of the issuer alone and algorithms with public keys
alone: neither `none` nor an HMAC with the public key as its key. The keys are read again when a
token names one that is not known, so that an issuer may change them.
"""

import asyncio
import ssl
import time
from hmac import compare_digest
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import msgspec
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from noetl.model.errors import Unavailable
from noetl.server.http.loopback import is_loopback
from noetl.server.oidc.flow import SignInFlow
from noetl.server.oidc.port import IssuedClaims, IssuerRefused, IssuerSettings

# With public keys only.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")  # fmt: skip
PUBLIC_KEY_TYPES = frozenset({"RSA", "EC", "OKP"})
DISCOVERY_PATH = "/.well-known/openid-configuration"
TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 1_000_000
MAX_AGE_S = 3600.0  # of the description and the keys of the issuer
MIN_AGE_S = 10.0  # before keys are read again for a token that names another one
MAX_CLOCK_SKEW_S = 60
MAX_SUBJECT_CHARS = 255
OK = 200


class IssuerDescription(msgspec.Struct, frozen=True):
    """What is used of the description that an issuer publishes."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class TokenAnswer(msgspec.Struct, frozen=True):
    id_token: str
    access_token: str | None = None


class IssuerClient:
    """An issuer, with what it publishes kept for an hour."""

    def __init__(self, settings: IssuerSettings, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._http = httpx.AsyncClient(
            timeout=TIMEOUT_S, trust_env=False, follow_redirects=False, verify=tls or True
        )
        self._reading = asyncio.Lock()
        self._description: IssuerDescription | None = None
        self._description_at = 0.0
        self._keys: KeySet | None = None
        self._keys_at = 0.0

    async def make_sign_in_url(self, flow: SignInFlow, redirect_uri: str) -> str:
        description = await self._describe()
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": self._settings.scopes,
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": flow.challenge,
            "code_challenge_method": "S256",
        }
        separator = "&" if urlsplit(description.authorization_endpoint).query else "?"
        return f"{description.authorization_endpoint}{separator}{urlencode(query)}"

    async def redeem_code(
        self, flow: SignInFlow, redirect_uri: str, code: str, issuer: str | None
    ) -> IssuedClaims:
        description = await self._describe()
        must_name_itself = description.authorization_response_iss_parameter_supported
        if issuer != self._settings.issuer and (issuer is not None or must_name_itself):
            raise IssuerRefused("the answer comes from another issuer")
        answer = await self._exchange_code(description, flow, redirect_uri, code)
        claims = await self._check_id_token(answer.id_token, flow.nonce)
        subject = claims["sub"]
        roles_name = self._settings.roles_claim.partition(".")[0]
        if roles_name not in claims and description.userinfo_endpoint and answer.access_token:
            more = await self._read_user_info(description.userinfo_endpoint, answer.access_token)
            if more.get("sub") != subject:
                raise IssuerRefused("the issuer answers with claims of another user")
            claims = {**more, **claims}
        return IssuedClaims(subject, claims)

    # -- the code --

    async def _exchange_code(
        self, description: IssuerDescription, flow: SignInFlow, redirect_uri: str, code: str
    ) -> TokenAnswer:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": flow.verifier,
        }
        settings = self._settings
        methods = description.token_endpoint_auth_methods_supported
        auth = None
        if settings.client_secret is None:
            form["client_id"] = settings.client_id
        elif "client_secret_basic" not in methods and "client_secret_post" in methods:
            form |= {"client_id": settings.client_id, "client_secret": settings.client_secret}
        else:
            auth = httpx.BasicAuth(
                urlencode({"": settings.client_id})[1:], urlencode({"": settings.client_secret})[1:]
            )
        status, body = await self._send("POST", description.token_endpoint, data=form, auth=auth)
        if status != OK:
            raise IssuerRefused(f"the issuer refuses the code (status {status})")
        answer: TokenAnswer = _decode(body, TokenAnswer, "the answer with the token")
        return answer

    async def _read_user_info(self, url: str, access_token: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {access_token}"}
        status, body = await self._send("GET", url, headers=headers)
        if status != OK:
            raise IssuerRefused(f"the issuer does not say who the user is (status {status})")
        claims: dict[str, Any] = _decode(body, dict[str, Any], "the claims of the user")
        return claims

    # -- the ID token --

    async def _check_id_token(self, text: str, nonce: str) -> dict[str, Any]:
        """The claims of an ID token. Raises `IssuerRefused` unless every check passes."""
        try:
            claims = (await self._verify_signature(text)).claims
            registry = jwt.JWTClaimsRegistry(
                now=int(time.time()),
                leeway=MAX_CLOCK_SKEW_S,
                iss={"essential": True, "value": self._settings.issuer},
                aud={"essential": True, "value": self._settings.client_id},
                sub={"essential": True},
                exp={"essential": True},
                iat={"essential": True},
                nonce={"essential": True},
            )
            registry.validate(claims)
        except (JoseError, ValueError, TypeError) as error:
            raise IssuerRefused(f"the ID token is not valid: {error}") from error
        self._check_more_claims(claims, nonce)
        return dict(claims)

    def _check_more_claims(self, claims: dict[str, Any], nonce: str) -> None:
        audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        party = claims.get("azp", None if len(audiences) > 1 else self._settings.client_id)
        if party != self._settings.client_id:
            raise IssuerRefused("the ID token was made for another client")
        if not isinstance(claims["nonce"], str) or not _is_same(claims["nonce"], nonce):
            raise IssuerRefused("the ID token belongs to another sign-in")
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_CHARS:
            raise IssuerRefused("the ID token names no user")

    async def _verify_signature(self, text: str) -> jwt.Token:
        registry = JWSRegistry(algorithms=list(ALGORITHMS))
        try:
            return jwt.decode(text, await self._read_keys(MAX_AGE_S), ALGORITHMS, registry)
        except InvalidKeyIdError:  # the issuer may have other keys by now
            return jwt.decode(text, await self._read_keys(MIN_AGE_S), ALGORITHMS, registry)

    # -- what the issuer publishes --

    async def _describe(self) -> IssuerDescription:
        async with self._reading:
            now_s = time.monotonic()
            if self._description is None or now_s > self._description_at + MAX_AGE_S:
                url = self._settings.issuer.rstrip("/") + DISCOVERY_PATH
                body = await self._read_published(url)
                described = _decode(body, IssuerDescription, "the description of the issuer")
                self._check_description(described)
                self._description, self._description_at = described, now_s
            return self._description

    def _check_description(self, described: IssuerDescription) -> None:
        if described.issuer != self._settings.issuer:
            raise IssuerRefused("the description is of another issuer than NOETL_OIDC_ISSUER")
        endpoints = [
            described.authorization_endpoint,
            described.token_endpoint,
            described.jwks_uri,
            described.userinfo_endpoint,
        ]
        if not all(is_trustworthy_url(url) for url in endpoints if url is not None):
            raise IssuerRefused("the issuer names an address without TLS")

    async def _read_keys(self, max_age_s: float) -> KeySet:
        description = await self._describe()
        async with self._reading:
            now_s = time.monotonic()
            if self._keys is None or now_s > self._keys_at + max_age_s:
                body = await self._read_published(description.jwks_uri)
                self._keys, self._keys_at = _read_public_keys(body), now_s
            return self._keys

    async def _read_published(self, url: str) -> bytes:
        status, body = await self._send("GET", url)
        if status != OK:
            raise Unavailable(f"the issuer answers with status {status} at {url}", hint="try again")
        return body

    async def _send(self, method: str, url: str, **more: Any) -> tuple[int, bytes]:
        """Status and body of the answer. Raises `Unavailable` if none comes."""
        received = bytearray()
        try:
            async with self._http.stream(method, url, **more) as answer:
                async for part in answer.aiter_bytes():
                    received += part
                    if len(received) > MAX_ANSWER_BYTES:
                        raise IssuerRefused("an answer of the issuer is too large")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(
                f"the issuer {self._settings.issuer} does not answer: {type(error).__name__}",
                hint="try again; NOETL_OIDC_ISSUER is its address",
            ) from error
        return answer.status_code, bytes(received)


def is_trustworthy_url(url: str) -> bool:
    """Whether nobody can read or change on the way what is sent to this address."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def _read_public_keys(body: bytes) -> KeySet:
    """The public keys of the issuer that sign. A key that is a secret is never used."""
    published = _decode(body, dict[str, Any], "the keys of the issuer")
    keys = [
        key
        for key in published.get("keys", [])
        if isinstance(key, dict)
        and key.get("kty") in PUBLIC_KEY_TYPES
        and key.get("use", "sig") == "sig"
    ]
    try:
        return KeySet.import_key_set({"keys": keys})
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise IssuerRefused(f"the keys of the issuer cannot be read: {error}") from error


def _is_same(given: str, wanted: str) -> bool:
    return compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())


def _decode(body: bytes, kind: Any, what: str) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise IssuerRefused(f"{what} cannot be read: {error}") from error
