"""An event as columns: its envelope, the rest, and what it is searched by."""

from typing import Any

from noetl.model import codec
from noetl.model.events import Event, get_result, list_types_with
from noetl.model.ids import CommandId

_STEP_EVENTS = list_types_with("step")
_COMMAND_EVENTS = list_types_with("command_id")
_ATTEMPT_EVENTS = list_types_with("attempt")


def split_event(event: Event, data: bytes) -> tuple[str, str | None, str | None]:
    """Split an event into `meta`, `result` and status.

    `meta` is the event's bytes without its envelope, `result` the envelope, byte for byte.
    """
    result = get_result(event)
    if result is None:
        return data.decode(), None, None
    envelope = codec.encode(result)
    field = b',"result":' + envelope
    head, _, tail = data.partition(field)
    # the same bytes may stand inside another field
    while field in tail and not _is_same_event(head + tail, envelope, data):
        more, _, tail = tail.partition(field)
        head += field + more
    return (head + tail).decode(), envelope.decode(), result.status


def read_event_columns(event: Any) -> tuple[str | None, CommandId | None, int | None]:
    """The step, the command and the attempt of an event, as far as its type has them."""
    event_type = type(event)
    step = command = attempt = None
    if event_type in _STEP_EVENTS:
        step = event.step or None
    if event_type in _COMMAND_EVENTS:
        command = event.command_id
    if event_type in _ATTEMPT_EVENTS:
        attempt = event.attempt
    return step, command, attempt


def join_event(meta: str, result: str | None) -> Event:
    if result is None:
        return codec.decode_event(meta.encode())
    return codec.decode_event(_insert_result(meta.encode(), result.encode()))


def _insert_result(meta: bytes, result: bytes) -> bytes:
    return meta[:-1] + b',"result":' + result + b"}"


def _is_same_event(meta: bytes, result: bytes, data: bytes) -> bool:
    return codec.encode(codec.decode_event(_insert_result(meta, result))) == data
