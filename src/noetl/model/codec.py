"""Bytes and back. Decoding validates; an event of an older shape is brought up to date here (`UPCASTS`), nowhere else."""

from collections.abc import Callable
from typing import Any

import msgspec

from noetl.model.commands import Command
from noetl.model.errors import CorruptLog
from noetl.model.events import Event
from noetl.model.messages import Message

Upcast = Callable[[dict[str, Any]], dict[str, Any]]

# Older event shapes by type: each function takes the decoded map and returns today's. Applied until none matches, so that
# an upcast needs to know only the next shape. There is one entry per change of shape, for ever.
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
        return _older(data, problem)
    except msgspec.DecodeError as error:
        raise CorruptLog(f"not JSON: {error}") from error


def _older(data: bytes, problem: msgspec.ValidationError) -> Event:
    """An event that is not of today's shape: an older one is brought up to date, anything else is corrupt."""
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
    """Today's shape of a decoded event; the very same object when there is nothing to do."""
    seen: set[str] = set()
    while isinstance(raw, dict) and (name := raw.get("type")) in UPCASTS and name not in seen:
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
