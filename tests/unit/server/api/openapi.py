"""The OpenAPI document in a form that two ways to write it have in common.

`python -m tests.unit.server.api.openapi` writes it again after an intended change of the API.
"""

import json
from pathlib import Path
from typing import Any

from noetl.server.http.application import make_openapi

DOCUMENT = Path(__file__).parents[1] / "openapi.json"
# keys with values that map names of the API to schemas: a property may be called "title"
NAMED = {"properties", "schemas", "paths", "content", "responses"}


def make_normal_openapi() -> Any:
    document = make_openapi()
    del document["info"]["version"]
    return normalize(document)


def normalize(part: Any) -> Any:
    """Drop what says nothing: titles of schemas, and the order of keys, parameters and types."""
    if isinstance(part, list):
        return [normalize(each) for each in part]
    if not isinstance(part, dict):
        return part
    normal = {key: _normalize_value(key, value) for key, value in part.items()}
    if "type" in part or "anyOf" in part or "$ref" in part or "enum" in part or "const" in part:
        return _normalize_schema(normal)
    if set(part) - {"title", "description", "examples", "default"}:
        return normal
    normal.pop("title", None)  # a schema of any value
    return normal


def _normalize_value(key: str, value: Any) -> Any:
    if key in NAMED and isinstance(value, dict):
        return {name: normalize(schema) for name, schema in value.items()}
    if key in ("examples", "example", "default"):
        return value
    if key == "description" and isinstance(value, str):
        return " ".join(value.split())
    if key == "required" and isinstance(value, list):
        return sorted(value)
    normal = normalize(value)
    if key in ("anyOf", "parameters"):
        return sorted(normal, key=lambda each: json.dumps(each, sort_keys=True))
    return normal


def _normalize_schema(schema: dict[str, Any]) -> dict[str, Any]:
    schema.pop("title", None)
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if "enum" in schema:
        schema.pop("type", None)
        schema["enum"] = sorted(schema["enum"])
    if schema.get("additionalProperties") is True:
        del schema["additionalProperties"]
    return schema


def write_document() -> None:
    text = json.dumps(make_normal_openapi(), indent=1, sort_keys=True, ensure_ascii=False)
    DOCUMENT.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    write_document()
