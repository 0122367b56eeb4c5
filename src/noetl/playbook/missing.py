"""Warnings of what a playbook names and a server does not have. It may come later, so none of them is an error."""

import re

from noetl.playbook.findings import Code, Finding


def unknown_playbook(text: str, path: str, version: str | None, file: str = "playbook") -> Finding:
    which = f"`{path}`" + (f" version {version}" if version else "")
    message, hint = f"no playbook {which} is registered", "register it before this one runs"
    return _warning(file, text, path, Code.UNKNOWN_PLAYBOOK, message, hint)


def unknown_credential(text: str, name: str, file: str = "playbook") -> Finding:
    variable = "NOETL_CREDENTIAL_" + re.sub(r"\W", "_", name).upper()
    message, hint = (
        f"no credential `{name}` is stored",
        f"noetl credential add, or {variable} where workers run",
    )
    return _warning(file, text, name, Code.UNKNOWN_CREDENTIAL, message, hint)


def _warning(file: str, text: str, named: str, code: Code, message: str, hint: str) -> Finding:
    """At the first place that spells the name."""
    before = text[: max(text.find(named), 0)]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return Finding(file, line, column, None, code, message, hint, "warning")
