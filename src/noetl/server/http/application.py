"""The HTTP application: the routes of all subjects, those of workers, the OpenAPI document, and the page for browsers."""

from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from noetl.metrics import Metrics
from noetl.model.identity import Permission
from noetl.server.accounts import routes as tokens
from noetl.server.accounts import user_routes as users
from noetl.server.accounts.authenticator import Authenticator
from noetl.server.audit import routes as audit
from noetl.server.audit.refusals import RefusedCalls
from noetl.server.catalog import routes as catalog
from noetl.server.credentials import routes as credentials
from noetl.server.executions import routes as executions
from noetl.server.health import routes as health
from noetl.server.hooks import routes as hooks
from noetl.server.http.guard import Guard
from noetl.server.http.hosts import AllowedHosts
from noetl.server.http.openapi import make_document
from noetl.server.http.refused import make_refusal_observer
from noetl.server.http.routing import DocumentedRoute, HttpRouter
from noetl.server.inspection import routes as inspection
from noetl.server.items import routes as items
from noetl.server.logs import routes as logs
from noetl.server.oidc import routes as oidc
from noetl.server.pages.answers import PageAnswers, is_page_path
from noetl.server.queue import routes as queue
from noetl.server.results import routes as results
from noetl.server.schedules import routes as schedules
from noetl.server.services import Services
from noetl.server.session import routes as session
from noetl.server.settings import ServerSettings
from noetl.server.signals import routes as events
from noetl.server.state import routes as playbook_state
from noetl.server.streams import routes as streams
from noetl.server.templates import routes as render
from noetl.server.tenants import routes as tenants
from noetl.server.variables import routes as variables
from noetl.server.workers.routes import WorkerRoutes

SUBJECTS = (
    streams,
    catalog,
    credentials,
    executions,
    inspection,
    events,
    logs,
    results,
    items,
    variables,
    playbook_state,
    queue,
    render,
    schedules,
    hooks,
    session,
    oidc,
    tokens,
    tenants,
    users,
    audit,
    health,
)


def create_app(
    services: Services,
    metrics: Metrics,
    worker_routes: WorkerRoutes,
    authenticator: Authenticator,
    settings: ServerSettings,
    refused_calls: RefusedCalls,
) -> ASGIApp:
    router = create_router(services, metrics, worker_routes, authenticator)
    router.state.public_url = settings.public_url
    router.set_refusal_observer(make_refusal_observer(refused_calls))
    return Guard(router, metrics, AllowedHosts(settings.allowed_hosts))


def create_router(
    services: Services, metrics: Metrics, worker_routes: WorkerRoutes, authenticator: Authenticator
) -> HttpRouter:
    """All routes, and what they need."""
    router = HttpRouter()
    router.state.services = services
    router.state.authenticator = authenticator
    router.state.readers = streams.StreamReaders(metrics)
    worker_routes.add_routes(router)
    router.add_routes(list_routes())
    queue.add_gone_routes(router)
    router.add_plain("GET", "/api/openapi.json", _answer_openapi, Permission.READ)
    router.set_fallback(is_page_path, PageAnswers().answer_page)
    return router


def list_routes() -> list[DocumentedRoute]:
    return [route for subject in SUBJECTS for route in subject.routes.routes]


def make_openapi() -> dict[str, Any]:
    """The document that `noetl openapi` prints. The worker protocol is not part of it."""
    return make_document(list_routes())


async def _answer_openapi(request: Request) -> Response:
    return Response(_encode_openapi(), media_type="application/json")


@cache
def _encode_openapi() -> bytes:
    return msgspec.json.encode(make_openapi())
