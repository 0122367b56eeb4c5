"""What the user gives to commands: playbooks, text files, payloads and `--set` assignments."""

import os
import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from noetl.model.errors import InvalidInput


class PlaybookSource:
    """The playbook that the user named: a file with its text, or a path of the catalog."""

    def __init__(self, name: str, text: str | None) -> None:
        self.name = name
        self.text = text

    @classmethod
    def from_argument(cls, argument: str) -> "PlaybookSource":
        """Raises if the argument looks like a file and there is no such file."""
        file = Path(argument)
        is_file = file.suffix in (".yaml", ".yml") or argument.startswith((".", "/", "~"))
        if is_file or file.exists():
            return cls(argument, read_text_file(file.expanduser()))
        return cls(argument, None)


def read_text_file(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror or error}", hint=suggest_file(file)) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file}: not UTF-8 text") from error


def suggest_file(file: Path) -> str | None:
    if not file.parent.is_dir():
        return None
    names = [name for name in os.listdir(file.parent) if name != file.name]
    close = get_close_matches(file.name, names, 1, cutoff=0.75)
    return f"did you mean {file.parent / close[0]}?" if close else None


def read_payload(payload: Path | None) -> dict[str, Any]:
    if payload is None:
        return {}
    values = parse_plain_yaml(read_text_file(payload), str(payload))
    if not isinstance(values, dict):
        raise InvalidInput(f"{payload}: a payload is a mapping of workload names to values")
    return values


def merge_assignments(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """The payload with the assignments of `--set` merged over it: `a.b=1` is `{"a": {"b": 1}}`."""
    from noetl.playbook.workload import merge_deep

    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        path = name.strip().split(".")
        if not equals or not all(path):
            raise InvalidInput(
                f"--set {assignment!r}: no name and value",
                hint="--set name=value, for example --set limit=20",
            )
        nested: Any = parse_plain_yaml(text, f"--set {name}")
        for part in reversed(path):
            nested = {part: nested}
        values = merge_deep(values, nested)
    return values


def warn_of_unknown_names(text: str, assignments: list[str]) -> None:
    """Warn of names that are set, but neither declared nor used by the playbook: likely typos."""
    if not assignments:
        return
    from noetl.cli.language import check_playbook

    playbook = check_playbook(text, "").playbook
    if playbook is None:
        return
    for assignment in assignments:
        name = assignment.partition("=")[0].strip()
        for warning in _list_unknown_names(name, playbook.workload, text):
            print(f"warning: --set {name}: {warning}", file=sys.stderr)


def _list_unknown_names(name: str, workload: dict[str, Any], text: str) -> Iterator[str]:
    declared: Any = workload
    parts = name.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(declared, dict):
            return
        if part not in declared:
            full_name = ".".join(["workload", *parts[: depth + 1]])
            if re.search(rf"\b{re.escape(full_name)}\b", text):
                return
            warning = f"the playbook has no {full_name}"
            close = get_close_matches(part, list(declared), 1)
            if close:
                warning += f": did you mean {'.'.join([*parts[:depth], *close])}?"
            yield warning
            return
        declared = declared[part]


def parse_plain_yaml(text: str, where: str) -> Any:
    """Parse YAML into plain data, with the limits of a playbook: no tags, no duplicate keys."""
    from noetl.playbook import text as yaml

    if not text.strip():
        return None
    document = yaml.read_document(text)
    for problem in document.problems:
        raise InvalidInput(
            f"{where}:{problem.mark.line}:{problem.mark.column}: {problem.message}",
            hint=problem.hint,
        )
    return yaml.strip_marks(document.data)
