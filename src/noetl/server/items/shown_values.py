"""Values as answers show them: whole if they are small, else the beginning of their text."""

from typing import Any

import msgspec

from noetl.model.failure_kinds import make_failure_shape
from noetl.server.items.views import ItemErrorView

MAX_SHOWN_VALUE_BYTES = 4 * 1024
MAX_TRACE_CHARS = 4_000


def cut_value(value: Any) -> tuple[Any, bool]:
    """The value, or `{cut, text}` with the beginning of its JSON. Also whether it was cut."""
    data = msgspec.json.encode(value)
    if len(data) <= MAX_SHOWN_VALUE_BYTES:
        return value, False
    text = data[:MAX_SHOWN_VALUE_BYTES].decode("utf-8", "ignore")
    return {"cut": True, "text": text}, True


def make_item_error(error: Any) -> ItemErrorView | None:
    """The failure of an item, from its row."""
    if not isinstance(error, dict):
        return None
    detail = error.get("detail")
    trace = detail.get("trace") if isinstance(detail, dict) else None
    return ItemErrorView(
        code=str(error.get("code", "")),
        message=str(error.get("message", "")),
        trace=None if trace is None else str(trace)[-MAX_TRACE_CHARS:],
    )


def is_of_kind(row: dict[str, Any], code: str, shape: str) -> bool:
    error = row.get("error")
    if not isinstance(error, dict) or error.get("code") != code:
        return False
    return make_failure_shape(str(error.get("message", ""))) == shape


def has_text(row: dict[str, Any], text: str) -> bool:
    """Whether the row has the text somewhere, in any case of letters."""
    return text in msgspec.json.encode(row).decode().lower()
