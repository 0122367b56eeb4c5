"""State between executions: named values of a playbook path, and the rules for names and values.

A version counts all writes of a name, also those that unset it. A name that was never written has
version 0.
"""

import math
import re
from typing import Any

import msgspec
from msgspec import Struct

MAX_STATE_NAMES = 100  # of one playbook path
MAX_STATE_VALUE_BYTES = 4_096  # of one value, as JSON
MAX_STATE_VERSIONS = 100  # in the history of one name
REFERENCE_KEY = "$reference"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_REDACTED = re.compile(r"\*\*\*[\w.\-]+\*\*\*")  # what the redactor writes in place of a secret


class StateValue(Struct, frozen=True, omit_defaults=True):
    """A value with its version. `unset`: there is no value now."""

    version: int
    value: Any = None
    unset: bool = False


NEVER_WRITTEN = StateValue(0, unset=True)


def is_state_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def find_name_problem(name: str) -> str | None:
    if is_state_name(name):
        return None
    return (
        f"{name[:80]!r} cannot name a state value: use letters, digits and _, at most 64 characters"
    )


def find_value_problem(name: str, value: Any) -> str | None:
    """Why this value cannot be a state value. None if it can."""
    if isinstance(value, dict) and REFERENCE_KEY in value:
        return (
            f"state.{name} would be a reference to a stored result:"
            " keep a scalar of it, such as its largest id"
        )
    parts = [value]
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list):
        parts = value
    if not all(_is_state_scalar(part) for part in parts):
        return (
            f"state.{name} may be a scalar, or a map or list of scalars:"
            " results go to the result store"
        )
    if any(isinstance(part, str) and _REDACTED.search(part) for part in parts):
        return f"state.{name} would hold a secret: secrets stay in the keychain"
    size = len(msgspec.json.encode(value))
    if size > MAX_STATE_VALUE_BYTES:
        return f"state.{name} would be {size} bytes, at most {MAX_STATE_VALUE_BYTES} are kept"
    return None


def _is_state_scalar(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int | str)
