"""The types of the API for the page: how schemas and routes are written in TypeScript."""

from typing import Any

import pytest

from docs.api_types import list_left_out_fields, write_document, write_type

REF = {"$ref": "#/components/schemas/Part"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, "string"),
        ({"type": "integer", "minimum": 1}, "number"),
        ({"type": "number"}, "number"),
        ({"type": "boolean"}, "boolean"),
        ({}, "unknown"),
        ({"description": "anything"}, "unknown"),
        (REF, "Part"),
        ({"anyOf": [REF, {"type": "null"}]}, "Part | null"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, "number"),
        ({"enum": ["a", "it's", 'say "b"']}, "'a' | 'it\\'s' | 'say \"b\"'"),
        ({"enum": [1, None, True]}, "1 | null | true"),
        ({"const": "latest"}, "'latest'"),
        ({"type": "array", "items": REF}, "Part[]"),
        ({"type": "array", "items": {"anyOf": [REF, {"type": "null"}]}}, "(Part | null)[]"),
        ({"type": "object"}, "Record<string, unknown>"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "Record<string, number>"),
    ],
)
def test_types(schema: dict[str, Any], expected: str) -> None:
    assert write_type(schema) == expected


PART = {
    "type": "object",
    "description": "A part */ of it.",
    "properties": {"name": {"type": "string"}, "x-y": {"type": "integer", "description": "How many."}},
    "required": ["name"],
}  # fmt: skip
PART_LINES = ["/** A part * / of it. */", "export interface Part {", "  name: string"]


def write(body: dict[str, Any] | None, left_out: set[tuple[str, str]]) -> list[str]:
    operation: dict[str, Any] = {
        "parameters": [
            {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
            {"name": "limit", "in": "query", "required": False, "schema": {"type": "integer"}},
            {"name": "Key", "in": "header", "required": False, "schema": {"type": "string"}},
        ],
        "responses": {
            "200": {"content": {"application/json": {"schema": REF}}},
            "4XX": {"content": {"application/json": {"schema": {}}}},
        },
    }
    if body is not None:
        operation["requestBody"] = body
    document = {
        "components": {"schemas": {"Part": PART}},
        "paths": {"/api/parts/{id}": {"post": operation}},
    }
    return list(write_document(document, left_out))


def test_answers_have_all_fields() -> None:
    lines = write(None, set())
    comment = ["  /** How many. */", "  'x-y': number", "}"]
    assert lines[2:8] == [*PART_LINES, *comment]
    assert lines[9:] == [
        "/** What each route takes and answers. */",
        "export interface Routes {",
        "  'POST /api/parts/{id}': {",
        "    path: { id: string }",
        "    query: { limit?: number }",
        "    answer: Part",
        "  }",
        "}",
    ]


def test_fields_of_bodies_with_defaults_may_be_left_out() -> None:
    body = {"required": True, "content": {"application/json": {"schema": REF}}}
    lines = write(body, set())
    assert "  'x-y'?: number" in lines
    assert "    body: Part" in lines
    assert "    body?: Part" in write({"content": body["content"]}, set())


def test_fields_that_the_server_may_leave_out_are_optional() -> None:
    assert "  'x-y'?: number" in write(None, {("Part", "x-y")})
    assert ("EventView", "of") in list_left_out_fields()


def test_an_answer_that_is_not_json_is_text() -> None:
    operation = {"responses": {"200": {"content": {"text/plain": {"schema": {"type": "string"}}}}}}
    document = {"components": {"schemas": {}}, "paths": {"/metrics": {"get": operation}}}
    assert "    answer: string" in list(write_document(document, set()))
