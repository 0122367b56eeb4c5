"""What the tables refuse: an envelope or the rest of an event that is too large to be anything but a payload, and state that is
none."""

from noetl.model import codec
from noetl.model.errors import Conflict, InvalidInput, NoetlError
from noetl.model.events import Event
from noetl.model.playbook_state import MAX_STATE_NAMES, StateValue, problem_with_name, problem_with_value

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


def encoded_state(name: str, value: StateValue) -> str | None:
    """As it is stored; None: unset. InvalidInput when it cannot be kept."""
    problem = problem_with_name(name) or (None if value.unset else problem_with_value(name, value.value))
    if problem is not None:
        raise InvalidInput(problem)
    return None if value.unset else codec.encode(value.value).decode()


def check_put(path: str, name: str, written: bool, is_full: bool, version: int, expected: int | None) -> None:
    """Raises unless it was written."""
    if is_full:
        raise Conflict(f"{path} has {MAX_STATE_NAMES} state values already", hint="put several values into one map")
    if not written:
        hint = f"read it again (`noetl state get {path} {name}`) and write with that version"
        raise Conflict(f"{path} {name} has version {version}, not {expected}", hint=hint, version=version)
