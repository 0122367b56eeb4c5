"""The limits that the event table enforces: the size of an envelope and of the rest of an event, and
no lists or maps of a payload in an envelope's context.
"""

from typing import Any

from noetl.model import codec
from noetl.model.envelope import has_rows
from noetl.model.errors import NoetlError
from noetl.model.events import Event, get_result

MAX_ENVELOPE_BYTES = 8 * 1024
MAX_EVENT_META_BYTES = 16 * 1024


class EventTooLarge(NoetlError):
    """An event exceeds the table's size constraint: a payload was put into it."""

    code = "EVENT_TOO_LARGE"


class EventHasRows(NoetlError):
    """An event breaks the table's constraint on `context`: rows of a payload were put into it."""

    code = "EVENT_HAS_ROWS"


def check_size(event: Event) -> bytes:
    """Return the event's bytes.

    Raises EventHasRows if its context holds rows, EventTooLarge if its envelope or the rest is too
    large.
    """
    data = codec.encode(event)
    result = get_result(event)
    if result is not None and result.context:
        _check_context(event, result.context)
    if len(data) <= MAX_ENVELOPE_BYTES:
        return data
    envelope = 0
    if result is not None:
        envelope = len(codec.encode(result))
    rest = len(data) - envelope
    if envelope > MAX_ENVELOPE_BYTES or rest > MAX_EVENT_META_BYTES:
        raise EventTooLarge(
            f"{event.type} {event.key}: envelope {envelope} bytes, the rest {rest}",
            hint=f"at most {MAX_ENVELOPE_BYTES} and {MAX_EVENT_META_BYTES}: payloads go to the result "
            "store, events carry references",
        )
    return data


def _check_context(event: Event, context: dict[str, Any]) -> None:
    for name, value in context.items():
        if has_rows(name, value):
            raise EventHasRows(
                f"{event.type} {event.key}: {name!r} of the context holds a list or map of a payload",
                hint="lists and maps go to the result store, events carry scalars and references",
            )
