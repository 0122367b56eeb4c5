"""Writes the OpenAPI document from the signatures of routes and the structs they name."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Union, get_args, get_origin

import msgspec
from starlette.responses import Response

from noetl.server.http.parameters import list_members
from noetl.server.http.problems import Problem
from noetl.server.http.routing import JSON_TYPE, DocumentedRoute, Reply, RouteParameter
from noetl.server.http.validation import document_pattern, order_literal, remember_literals

REF_TEMPLATE = "#/components/schemas/{name}"
PLACES = ("path", "query", "header")
PROBLEMS = {
    "4XX": "The request cannot be honoured: nothing happened.",
    "5XX": "503: try again, with the same Idempotency-Key.",
}
Schema = dict[str, Any]


def make_document(routes: Iterable[DocumentedRoute]) -> Schema:
    documented = [route for route in routes if route.documented]
    kinds: list[Any] = [Problem]
    for route in documented:
        kinds.extend(_list_types(route))
    for kind in kinds:
        remember_literals(kind)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF_TEMPLATE)
    pending = iter([_clean_schema(schema) for schema in schemas])
    problem = next(pending)
    paths: dict[str, Schema] = {}
    for route in documented:
        operation = _describe_route(route, pending, problem)
        paths.setdefault(route.path.replace(":path}", "}"), {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "NoETL",
            "summary": "Playbooks run as event-sourced executions.",
            "version": version("noetl"),
        },
        "paths": paths,
        "components": {
            "schemas": _clean_components(components),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{"token": []}],
    }


def make_inline_schema(kind: type[msgspec.Struct]) -> Schema:
    """The schema of a struct that the document shows where it is used."""
    _, components = msgspec.json.schema_components([kind], ref_template=REF_TEMPLATE)
    schema: Schema = _clean_schema(components[kind.__name__])
    return schema


def _list_types(route: DocumentedRoute) -> list[Any]:
    """The types of a route, in the order in which `_describe_route` takes their schemas."""
    kinds = [parameter.kind for parameter in _sort_parameters(route)]
    if route.signature.body is not None:
        kinds.append(route.signature.body.kind)
    answer = _find_answer_type(route)
    if answer is not None:
        kinds.append(answer)
    return kinds


def _find_answer_type(route: DocumentedRoute) -> Any:
    """The type of the JSON it answers; None if its responses are described otherwise."""
    if route.responses:
        return None
    if get_origin(route.signature.returns) is Reply:
        return get_args(route.signature.returns)[0]
    answers = [kind for kind in list_members(route.signature.returns) if not _is_response(kind)]
    return Union[tuple(answers)] if answers else None  # as many as there are


def _is_response(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Response)


def _sort_parameters(route: DocumentedRoute) -> list[RouteParameter]:
    return sorted(route.signature.parameters, key=lambda each: PLACES.index(each.place))


def _describe_route(route: DocumentedRoute, schemas: Any, problem: Schema) -> Schema:
    operation: Schema = {
        "tags": [route.tag],
        "summary": route.name.replace("_", " ").title(),
        "description": _join_lines(route.handler.__doc__),
        "operationId": route.name,
    }
    if route.public:
        operation["security"] = []
    parameters = [
        _describe_parameter(parameter, next(schemas)) for parameter in _sort_parameters(route)
    ]
    if parameters:
        operation["parameters"] = parameters
    if route.signature.body is not None:
        operation["requestBody"] = {"content": {JSON_TYPE: {"schema": next(schemas)}}}
        if route.signature.body.required:
            operation["requestBody"]["required"] = True
    responses: Schema = {str(status): about for status, about in route.responses.items()}
    if _find_answer_type(route) is not None:
        content = {JSON_TYPE: {"schema": next(schemas)}}
        responses[str(route.status)] = {"description": "Successful Response", "content": content}
    for status, description in PROBLEMS.items():
        content = {route.problem_type: {"schema": problem}}
        responses[status] = {"description": description, "content": content}
    return {**operation, "responses": responses, **route.extra}


def _describe_parameter(parameter: RouteParameter, schema: Schema) -> Schema:
    default = None if parameter.required else parameter.default
    if default is not None:
        schema = {**schema, "default": default}
    described = {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "schema": schema,
    }
    if parameter.about.description is not None:
        described["description"] = parameter.about.description
    return described


def _join_lines(text: str | None) -> str:
    return " ".join((text or "").split())


def _clean_components(components: dict[str, Schema]) -> dict[str, Schema]:
    return {name: _clean_schema(schema) for name, schema in sorted(components.items())}


def _clean_schema(part: Any) -> Any:
    """The schema without what says nothing: null as a default, and an empty list of required
    fields. Items of a list are always described."""
    if isinstance(part, list):
        return [_clean_schema(each) for each in part]
    if not isinstance(part, dict):
        return part
    cleaned = {key: _clean_value(key, value) for key, value in part.items()}
    if "default" in cleaned and cleaned["default"] is None:
        del cleaned["default"]
    if not cleaned.get("required", True):
        del cleaned["required"]
    if cleaned.get("type") == "array":
        cleaned.setdefault("items", {})
    return cleaned


def _clean_value(key: str, value: Any) -> Any:
    match key:
        case "examples" | "default":
            return value
        case "enum":
            return order_literal(value)
        case "pattern":
            return document_pattern(value)
        case "description":
            return _join_lines(value)
        case "properties":
            return {name: _clean_schema(schema) for name, schema in value.items()}
        case _:
            return _clean_schema(value)
