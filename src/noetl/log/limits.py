"""What the event table refuses: an envelope or the rest of an event that is too large to be anything but a payload."""

from noetl.model import codec
from noetl.model.errors import NoetlError
from noetl.model.events import Event

RESULT_LIMIT = 8 * 1024
META_LIMIT = 16 * 1024


class EventTooLarge(NoetlError):
    """An event breaks the table's size constraint: whoever made it put a payload into it."""

    code = "EVENT_TOO_LARGE"


def check_size(event: Event) -> bytes:
    """The event's bytes; EventTooLarge when its envelope or the rest of it is beyond the limit."""
    data = codec.encode(event)
    if len(data) <= RESULT_LIMIT:
        return data
    result = getattr(event, "result", None)
    envelope = 0 if result is None else len(codec.encode(result))
    rest = len(data) - envelope
    if envelope > RESULT_LIMIT or rest > META_LIMIT:
        raise EventTooLarge(
            f"{event.type} {event.key}: envelope {envelope} bytes, the rest {rest}",
            hint=f"at most {RESULT_LIMIT} and {META_LIMIT}: payloads go to the result store, events carry references",
        )
    return data
