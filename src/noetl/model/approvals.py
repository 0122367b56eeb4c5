"""Approvals: signals named `approve:<step>` with a payload of `approved: true` or `false`."""

from typing import Any, Final

APPROVAL_PREFIX: Final = "approve:"
APPROVAL_EXAMPLE: Final = '{"approved": true, "by": "ada"}'
APPROVAL_HINT: Final = (
    f'send {APPROVAL_EXAMPLE} to approve, or the same with "approved": false to reject'
)


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
