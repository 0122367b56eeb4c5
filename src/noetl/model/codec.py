"""Encode and decode events, messages and commands. Decoding validates.

Only this module brings events of an older shape up to date (`UPCASTS`).
"""

from collections.abc import Callable
from typing import Any

import msgspec

from noetl.model.commands import Command
from noetl.model.errors import CorruptLog
from noetl.model.events import Event
from noetl.model.messages import Message

Upcast = Callable[[dict[str, Any]], dict[str, Any]]

# By older event type: a function from the decoded map to the next newer shape. Upcasts are applied
# until none matches, so each knows only the next shape. An entry is never removed.
UPCASTS: dict[str, Upcast] = {}

_encoder = msgspec.json.Encoder(order=None)
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_messages: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


def decode_event(data: bytes) -> Event:
    try:
        return _events.decode(data)
    except msgspec.ValidationError as problem:
        return _decode_older_event(data, problem)
    except msgspec.DecodeError as error:
        raise CorruptLog(f"not JSON: {error}") from error


def _decode_older_event(data: bytes, problem: msgspec.ValidationError) -> Event:
    """Decode an event that does not have today's shape. Raises CorruptLog if no upcast fits."""
    try:
        raw = msgspec.json.decode(data)
        current = upcast(raw)
        if current is not raw:
            converted: Event = msgspec.convert(current, Event)
            return converted
    except msgspec.DecodeError as error:
        raise CorruptLog(f"not an event, even after upcasting: {error}") from error
    raise CorruptLog(f"not an event: {problem}") from problem


def upcast(raw: Any) -> Any:
    """Bring a decoded event to today's shape. Returns the same object if no upcast matches."""
    seen: set[str] = set()
    while isinstance(raw, dict):
        name = raw.get("type")
        if name not in UPCASTS or name in seen:
            break
        seen.add(str(name))
        raw = UPCASTS[str(name)](raw)
    return raw


def decode_message(data: bytes) -> Message:
    try:
        return _messages.decode(data)
    except msgspec.DecodeError as error:
        raise CorruptLog(f"not a message: {error}") from error


def decode_command(data: bytes) -> Command:
    try:
        return _commands.decode(data)
    except msgspec.DecodeError as error:
        raise CorruptLog(f"not a command: {error}") from error
