"""Warnings about playbooks and credentials that a server does not have.

They may be added before the playbook runs, so these findings are not errors.
"""

import re

from noetl.playbook.findings import Code, Finding


def warn_unknown_playbook(
    text: str, path: str, version: str | None, file: str = "playbook"
) -> Finding:
    playbook = f"`{path}`"
    if version:
        playbook = f"`{path}` version {version}"
    message = f"no playbook {playbook} is registered"
    hint = "register it before this one runs"
    return _make_warning(file, text, path, Code.UNKNOWN_PLAYBOOK, message, hint)


def warn_unknown_credential(text: str, name: str, file: str = "playbook") -> Finding:
    variable = "NOETL_CREDENTIAL_" + re.sub(r"\W", "_", name).upper()
    message = f"no credential `{name}` is stored"
    hint = f"noetl credential add, or {variable} where workers run"
    return _make_warning(file, text, name, Code.UNKNOWN_CREDENTIAL, message, hint)


def _make_warning(
    file: str,
    text: str,
    named: str,
    code: Code,
    message: str,
    hint: str,
) -> Finding:
    """Make a warning at the first place that has the name."""
    before = text[: max(text.find(named), 0)]
    line = before.count("\n") + 1
    column = len(before) - before.rfind("\n")
    return Finding(file, line, column, None, code, message, hint, "warning")
