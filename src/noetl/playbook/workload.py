"""The merged input of an execution: the playbook's defaults, the request's payload over them. Immutable afterwards."""

from typing import Any

import orjson

from noetl.model.errors import InvalidInput
from noetl.playbook.expressions import Functions, TemplateError
from noetl.playbook.model import Playbook
from noetl.playbook.templates import render_value

LIMIT = 1024 * 1024


def merge(playbook: Playbook, payload: dict[str, Any] | None, functions: Functions | None = None) -> dict[str, Any]:
    """Defaults may use templates over the payload and earlier keys; the payload itself is data and never rendered."""
    payload = payload or {}
    merged: dict[str, Any] = dict(payload)
    for key, default in playbook.workload.items():
        given = payload.get(key)
        if key in payload and not (isinstance(given, dict) and isinstance(default, dict)):
            continue
        try:
            rendered = render_value(default, {**merged, "workload": merged}, functions=functions)
        except TemplateError as error:
            raise InvalidInput(
                f"workload default {key + error.path!r}: {error}", hint="defaults may use the payload and earlier keys"
            ) from error
        merged[key] = over(rendered, given) if key in payload else rendered
    ordered = {key: merged[key] for key in [*playbook.workload, *(k for k in payload if k not in playbook.workload)]}
    size = len(orjson.dumps(ordered))
    if size > LIMIT:
        raise InvalidInput(f"the workload is {size} bytes, the limit is {LIMIT}", hint="pass large data by reference")
    return ordered


def over(base: Any, given: Any) -> Any:
    """Deep merge: maps are merged, everything else is replaced."""
    if isinstance(base, dict) and isinstance(given, dict):
        return {
            key: over(base[key], given[key]) if key in base and key in given else given.get(key, base.get(key))
            for key in [*base, *(k for k in given if k not in base)]
        }
    return given
