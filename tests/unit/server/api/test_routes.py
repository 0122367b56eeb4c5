"""What is true of every route and every service."""

import inspect
import json
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from noetl.engine.state import Status
from noetl.model.errors import InvalidInput
from noetl.model.identity import Identity
from noetl.model.statuses import STATUSES
from noetl.server.accounts import routes as tokens
from noetl.server.accounts import user_routes as users
from noetl.server.audit import routes as audit
from noetl.server.catalog import routes as catalog
from noetl.server.credentials import routes as credentials
from noetl.server.executions import routes as executions
from noetl.server.executions.filters import make_execution_filter
from noetl.server.health import routes as health
from noetl.server.hooks import routes as hooks
from noetl.server.http.application import make_openapi
from noetl.server.inspection import routes as inspection
from noetl.server.items import routes as items
from noetl.server.logs import routes as logs
from noetl.server.oidc import routes as oidc
from noetl.server.queue import routes as queue
from noetl.server.results import routes as results
from noetl.server.schedules import routes as schedules
from noetl.server.services import Services
from noetl.server.session import routes as session
from noetl.server.signals import routes as events
from noetl.server.state import routes as playbook_state
from noetl.server.streams import routes as streams
from noetl.server.templates import routes as render
from noetl.server.tenants import routes as tenants
from noetl.server.variables import routes as vars

MODULES = (
    audit, catalog, credentials, events, executions, health, hooks, inspection, items, logs, oidc, playbook_state, queue, render,
    results, schedules, session, streams, tenants, tokens, users, vars,
)  # fmt: skip
# Say nothing about anyone's data, or find out who calls by themselves.
OPEN = {
    "check_readiness",
    "call",  # of a hook, by its signature
    "open_session_by_link",
    "open_session_by_token",
    "open_session_by_password",
    "get_label",
    "begin_sign_in",
    "end_sign_in",
    "end_session",
}


def test_every_service_function_takes_an_identity() -> None:
    for field in fields(Services):
        kind = get_type_hints(Services)[field.name]
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name not in OPEN:
                assert list(inspect.signature(function).parameters)[1] == "identity", (
                    f"{kind.__name__}.{name}"
                )
                assert get_type_hints(function)["identity"] is Identity


def test_every_route_knows_who_asks() -> None:
    for module in MODULES:
        for route in module.routes.routes:
            if not route.public:
                assert "who" in inspect.signature(route.handler).parameters, route.path


def test_every_route_is_described_with_an_id_of_its_own() -> None:
    described = make_openapi()
    operations = [operation for path in described["paths"].values() for operation in path.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids))
    routes = [route for module in MODULES for route in module.routes.routes]
    assert {route.path.replace(":path", "") for route in routes if route.documented} == set(
        described["paths"]
    )
    assert all({"4XX", "5XX"} <= operation["responses"].keys() for operation in operations)
    assert "422" not in operations[0]["responses"]
    assert [
        operation["operationId"] for operation in operations if not operation.get("description")
    ] == []


def test_requests_are_described_by_example_and_refuse_what_they_do_not_know() -> None:
    described = make_openapi()
    schemas = described["components"]["schemas"]
    for name in ("Execute", "EventBody", "BatchBody", "RenderBody", "SignalBody", "OutsideEvent", "CredentialBody",
                 "ScheduleBody", "HookBody"):  # fmt: skip
        assert schemas[name]["additionalProperties"] is False, name
    assert '"examples"' in json.dumps(schemas["Execute"])
    body = described["paths"]["/api/catalog/register"]["post"]["requestBody"]["content"]
    assert "text/yaml" in body
    assert body["text/yaml"]["example"].startswith("apiVersion")


def test_ids_are_text_everywhere() -> None:
    for name, schema in make_openapi()["components"]["schemas"].items():
        for field, kind in schema.get("properties", {}).items():
            if field.endswith("_id") or field in ("parent", "retry_of"):
                kinds = {kind.get("type"), *(each.get("type") for each in kind.get("anyOf", ()))}
                assert "integer" not in kinds, f"{name}.{field}"


def test_every_status_that_an_execution_may_have_can_be_asked_for() -> None:
    assert {*get_args(Status)} - {"new"} <= {*STATUSES}
    assert make_execution_filter(0, ",".join(STATUSES)).statuses == STATUSES
    with pytest.raises(InvalidInput, match="pausd"):
        make_execution_filter(0, "pausd", None, None, None)
