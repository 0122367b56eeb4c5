"""Notes requests that were refused, for the audit trail."""

from starlette.requests import Request

from noetl.accounts.texts import read_token_id
from noetl.model.identity import Identity
from noetl.model.ids import DEFAULT_TENANT
from noetl.server.audit.call_origin import CallOrigin
from noetl.server.audit.recorder import clean_text
from noetl.server.audit.refusals import RefusedCaller, RefusedCalls
from noetl.server.http.callers import IDENTITY
from noetl.server.http.routing import RefusalObserver

CODES = {401: "NOT_AUTHENTICATED", 403: "NOT_PERMITTED"}


def make_refusal_observer(refused_calls: RefusedCalls) -> RefusalObserver:
    """A function that notes a refused request."""

    def note_refusal(request: Request, status: int, origin: CallOrigin) -> None:
        identity: Identity | None = request.scope.get(IDENTITY)
        code = CODES[status]
        if identity is None:
            token_id = _read_sent_token_id(request)
            caller = RefusedCaller(DEFAULT_TENANT, None, token_id, origin.address, code)
        else:
            name = clean_text(identity.name)
            caller = RefusedCaller(identity.tenant, name, identity.token_id, origin.address, code)
        route = getattr(request.scope.get("endpoint"), "__name__", "none")
        refused_calls.note(caller, route, origin.request_id)

    return note_refusal


def _read_sent_token_id(request: Request) -> str | None:
    """The id in the text of the token, which is no secret."""
    _, _, text = request.headers.get("authorization", "").partition(" ")
    return read_token_id(text.strip())
