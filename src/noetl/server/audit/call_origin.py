"""Where the present request comes from: for entries of the audit trail."""

import re
import secrets
from collections.abc import Iterable
from contextvars import ContextVar

REQUEST_ID_HEADER = "X-Request-Id"
REQUEST_ID_BYTES = 9
_HEADER_NAME = REQUEST_ID_HEADER.lower().encode()
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:/+=\-]{1,100}", re.ASCII)


class CallOrigin:
    """The address of the caller and the id of the request.

    The id is the one that the caller sends, or else a new one. Most requests need none, so it is looked
    for when it is first needed.
    """

    __slots__ = ("_headers", "address", "used_request_id")

    def __init__(self, address: str | None, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.address = address
        self._headers = headers
        self.used_request_id: str | None = None

    @property
    def request_id(self) -> str:
        if self.used_request_id is None:
            sent = self._read_sent_id()
            self.used_request_id = sent or secrets.token_urlsafe(REQUEST_ID_BYTES)
        return self.used_request_id

    def _read_sent_id(self) -> str | None:
        for name, value in self._headers:
            if name == _HEADER_NAME:
                text = value.decode("latin-1")
                return text if _REQUEST_ID.fullmatch(text) else None
        return None


# Every request has a context of its own. None: a call in the process of a user.
current_origin: ContextVar[CallOrigin | None] = ContextVar("current_origin", default=None)
