"""Routes for the caller's own identity."""

from importlib.metadata import version

from noetl.model.identity import LOCAL_IDENTITY
from noetl.server.http.depends import Who
from noetl.server.http.routing import Routes
from noetl.server.session.views import SessionView

routes = Routes("session")


@routes.get("/api/session")
async def get_session(who: Who) -> SessionView:
    """Who asks, for which tenant and with which roles, and the version of the server."""
    return SessionView(
        name=who.name,
        tenant=who.tenant,
        roles=sorted(who.roles),
        version=version("noetl"),
        local=who == LOCAL_IDENTITY,
    )
