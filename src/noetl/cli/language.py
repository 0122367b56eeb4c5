"""Checks playbooks that the user gives, and warns of likely typos."""

import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from noetl.playbook.findings import Code
from noetl.playbook.model import Playbook
from noetl.playbook.validation import PlaybookInvalid
from noetl.runtime.kinds import check_playbook

CheckedPlaybook = tuple[str, str, Playbook]  # file, its text, the playbook in it


def check_playbook_or_raise(source: str | bytes, file: str) -> Playbook:
    """The playbook, or PlaybookInvalid.

    Prints unknown tools on stderr: their steps fail unless a worker has these tools.
    """
    loaded = check_playbook(source, file)
    if loaded.playbook is None:
        raise PlaybookInvalid(loaded.findings)
    for finding in loaded.findings:
        if finding.code == Code.UNKNOWN_KIND:
            print(f"{finding}\n    {finding.hint}", file=sys.stderr)
    return loaded.playbook


def warn_of_unknown_names(text: str, assignments: list[str]) -> None:
    """Warn of names that are set, but neither declared nor used by the playbook: likely typos."""
    if not assignments:
        return
    playbook = check_playbook(text, "").playbook
    if playbook is None:
        return
    for assignment in assignments:
        name = assignment.partition("=")[0].strip()
        for warning in _list_unknown_names(name, playbook.workload, text):
            print(f"warning: --set {name}: {warning}", file=sys.stderr)


def _list_unknown_names(
    name: str,
    workload: dict[str, Any],
    text: str,
) -> Iterator[str]:
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
