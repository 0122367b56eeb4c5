"""The value of an HTTP call: stored with `data`, shown with `body` too."""

from typing import Any, Final

# The keys of the value of an HTTP call.
HTTP_VALUE_KEYS: Final = frozenset(("status_code", "headers", "url", "elapsed", "data"))
HTTP_ROWS_MEMBER: Final = "data"  # the only one of them that may be rows


def add_body(value: Any) -> Any:
    """The value of an HTTP call as templates and tools get it: `body` is the same as `data`.

    Other values are returned as they are.
    """
    if isinstance(value, dict) and value.keys() >= HTTP_VALUE_KEYS and "body" not in value:
        return {**value, "body": value["data"]}
    return value


def remove_body(value: Any) -> Any:
    """The value of an HTTP call without the `body` that is the same as its `data`, so that nothing
    is stored twice."""
    if not isinstance(value, dict) or not value.keys() >= HTTP_VALUE_KEYS:
        return value
    if value.get("body", value) is not value["data"]:
        return value
    return {name: part for name, part in value.items() if name != "body"}


def has_body_of(value: Any, stored: Any) -> bool:
    """Whether `value` is `stored` with a `body` added: both then share their map of headers."""
    if not isinstance(stored, dict) or not isinstance(value, dict):
        return False
    if not (stored.keys() >= HTTP_VALUE_KEYS <= value.keys()):
        return False
    return value["headers"] is stored["headers"] and value["data"] is stored["data"]
