"""Approvals: signals named `approve:<step>` with a payload of `approved: true` or `false`.

The question of an approval is what a person is asked, as an event carries it: scalars by name.
"""

from typing import Any, Final

import msgspec

from noetl.model.envelope import MAX_SCALAR_BYTES, is_scalar
from noetl.model.secrets import names_secret

APPROVAL_PREFIX: Final = "approve:"
APPROVAL_EXAMPLE: Final = '{"approved": true, "by": "ada"}'
APPROVAL_HINT: Final = (
    f'send {APPROVAL_EXAMPLE} to approve, or the same with "approved": false to reject'
)
MESSAGE_FIELD: Final = "message"  # the field of a question that is a text and no map
MAX_QUESTION_BYTES: Final = 1_024  # of all fields of a question
ELLIPSIS: Final = "…"  # the end of a text that was cut; as a field: how many were left out


def approval_name(step: str) -> str:
    """The name of the signal that approves or rejects this step."""
    return APPROVAL_PREFIX + step


def is_approval(name: str) -> bool:
    return name.startswith(APPROVAL_PREFIX)


def problem_with_approval(payload: Any) -> str | None:
    """Why the payload neither approves nor rejects. None if it does. The text repeats nothing of
    the payload."""
    if not isinstance(payload, dict):
        return f"its payload is {_describe_payload_kind(payload)}, not a map with `approved`"
    if "approved" not in payload:
        return "its payload has no `approved`"
    approved = payload["approved"]
    if not isinstance(approved, bool):
        return f"its `approved` is {_describe_payload_kind(approved)}, not true or false"
    return None


def _describe_payload_kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case dict():
            return "a map"
        case _:
            return "a list"


# ---- the question -----------------------------------------------------------------------


def make_question(asked: Any) -> dict[str, Any]:
    """What `approval` of a playbook asks, cut to what an event may carry.

    Fields that name secrets are left out. Lists and maps are told by their size: their rows stay in
    the result store.
    """
    if asked is None or asked is True or asked == "":
        return {}
    fields = asked if isinstance(asked, dict) else {MESSAGE_FIELD: asked}
    shown = {str(name): value for name, value in fields.items() if not names_secret(name)}
    question: dict[str, Any] = {}
    left = MAX_QUESTION_BYTES
    for name, value in shown.items():
        part = {_cut_text(name): _shorten_value(value)}
        left -= len(msgspec.json.encode(part))
        if left < 0:
            question[ELLIPSIS] = f"{len(shown) - len(question)} more"
            break
        question |= part
    return question


def _shorten_value(value: Any) -> Any:
    match value:
        case str():
            return _cut_text(value)
        case dict():
            return f"a map of {len(value)}"
        case _ if is_scalar(value):
            return value
        case list() | tuple():
            return f"a list of {len(value)}"
        case _:
            return _cut_text(str(value))


def _cut_text(text: str) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_SCALAR_BYTES:
        return data.decode()
    return data[: MAX_SCALAR_BYTES - len(ELLIPSIS.encode())].decode("utf-8", "ignore") + ELLIPSIS


def describe_question(question: dict[str, Any]) -> str:
    """The question in one line, without control characters: its message first, then its other
    fields."""
    parts = [f"{name}: {value}" for name, value in question.items() if name != MESSAGE_FIELD]
    message = question.get(MESSAGE_FIELD)
    if message is not None:
        parts.insert(0, str(message))
    line = ", ".join(parts)
    printable = "".join(letter if letter.isprintable() else " " for letter in line)
    return " ".join(printable.split())
