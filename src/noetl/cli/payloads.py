"""Workload values that the user gives: YAML of `--set` and of payload files."""

from pathlib import Path
from typing import Any

from noetl.cli.arguments import read_text_file
from noetl.model.errors import InvalidInput
from noetl.playbook import text as yaml
from noetl.playbook.merging import merge_deep


def read_payload(payload: Path | None) -> dict[str, Any]:
    if payload is None:
        return {}
    values = parse_plain_yaml(read_text_file(payload), str(payload))
    if not isinstance(values, dict):
        raise InvalidInput(f"{payload}: a payload is a mapping of workload names to values")
    return values


def merge_assignments(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """The payload with the assignments of `--set` merged over it: `a.b=1` is `{"a": {"b": 1}}`."""
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


def parse_plain_yaml(text: str, where: str) -> Any:
    """Parse YAML into plain data, with the limits of a playbook: no tags, no duplicate keys."""
    if not text.strip():
        return None
    document = yaml.read_document(text)
    for problem in document.problems:
        raise InvalidInput(
            f"{where}:{problem.mark.line}:{problem.mark.column}: {problem.message}",
            hint=problem.hint,
        )
    return yaml.strip_marks(document.data)
