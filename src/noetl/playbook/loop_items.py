"""The items of a loop: what the value of `loop.in` means. The server and workers share this rule."""

from typing import Any

from noetl.model.errors import Failure
from noetl.template.values import kind_of


def list_loop_items(value: Any) -> list[Any] | Failure:
    """A list is its items; a map or a text is one item; null is none. Others cannot be looped over."""
    if value is None:
        return []
    if isinstance(value, list):
        return value
    if isinstance(value, dict | str):
        return [value]
    message = f"loop.in is {kind_of(value)}; a loop runs over a list, a map or text (one item), or null (none)"
    return Failure(code="BAD_COLLECTION", kind="template", message=message)
