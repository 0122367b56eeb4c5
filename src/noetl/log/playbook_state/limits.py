"""The limits of state values: valid names and values, one version at a time, and few names."""

from noetl.model import codec
from noetl.model.errors import Conflict, InvalidInput
from noetl.model.playbook_state import (
    MAX_STATE_NAMES,
    StateValue,
    find_name_problem,
    find_value_problem,
)


def encode_state(name: str, value: StateValue) -> str | None:
    """The value as it is stored; None if it is unset. Raises InvalidInput if it cannot be stored."""
    problem = find_name_problem(name)
    if problem is None and not value.unset:
        problem = find_value_problem(name, value.value)
    if problem is not None:
        raise InvalidInput(problem)
    if value.unset:
        return None
    return codec.encode(value.value).decode()


def check_put(
    path: str, name: str, written: bool, is_full: bool, version: int, expected: int | None
) -> None:
    """Raise Conflict unless the value was written."""
    if is_full:
        raise Conflict(
            f"{path} has {MAX_STATE_NAMES} state values already",
            hint="put several values into one map",
        )
    if not written:
        hint = f"read it again (`noetl state get {path} {name}`) and write with that version"
        raise Conflict(
            f"{path} {name} has version {version}, not {expected}", hint=hint, version=version
        )
