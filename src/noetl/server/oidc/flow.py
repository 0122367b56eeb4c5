"""One sign-in of one browser. The server keeps nothing of it, so any server may end what another began.

The browser keeps a random secret in a cookie. State, nonce and code verifier are made of the secret
in one direction, so the address of the issuer, which has the state, reveals neither of the others.
An answer of the issuer counts only in the browser that has the secret of its state.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

from msgspec import Struct

SECRET_BYTES = 32
MAX_FLOW_S = 600  # seconds for the user to sign in at the issuer
MAX_PLACE_CHARS = 2_000
START_PLACE = "/executions"
SIGN_IN_PLACE = "/login"


class SignInFlow(Struct, frozen=True):
    """`place` is the path of the page to which the browser comes back."""

    secret: bytes
    place: str

    @property
    def state(self) -> str:
        return self._derive("state")

    @property
    def nonce(self) -> str:
        return self._derive("nonce")

    @property
    def verifier(self) -> str:
        return self._derive("verifier")

    @property
    def challenge(self) -> str:
        """The sum of the verifier. It alone is not enough to use the code."""
        return _encode(sha256(self.verifier.encode()).digest())

    def _derive(self, use: str) -> str:
        return _encode(hmac.digest(self.secret, use.encode(), "sha256"))


def write_flow(flow: SignInFlow) -> str:
    """The text of the cookie."""
    return f"{_encode(flow.secret)}.{_encode(flow.place.encode())}"


def read_flow(text: str) -> SignInFlow | None:
    """The flow of a cookie; None if the text is none."""
    secret_text, _, place_text = text.partition(".")
    try:
        secret, place = _decode(secret_text), _decode(place_text).decode()
    except ValueError:
        return None
    if len(secret) != SECRET_BYTES:
        return None
    return SignInFlow(secret, choose_place(place))


def choose_place(wanted: str | None) -> str:
    """The place to go after signing in: a path of this server, never another site."""
    if wanted is None or len(wanted) > MAX_PLACE_CHARS or not wanted.isprintable():
        return START_PLACE
    is_path = wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    if not is_path or not wanted.isascii() or "\\" in wanted or wanted.startswith(SIGN_IN_PLACE):
        return START_PLACE
    return wanted


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
