"""The credentials that a playbook names. `children` does the same for child playbooks."""

from collections.abc import Iterator

from noetl.playbook.model import Playbook, SinkTask, Task
from noetl.playbook.text import is_template

LOCAL_CREDENTIALS = frozenset({"local"})  # names that need no credential: the worker's own database


def literal_credentials(playbook: Playbook) -> tuple[str, ...]:
    """Return the credentials that are named without a template, each once.

    An `auth` that names an entry of the keychain is no credential; the entry names one.
    """
    keychain_names = {entry.name for entry in playbook.keychain}
    names = [
        name
        for name in _find_credential_names(playbook)
        if name not in keychain_names | LOCAL_CREDENTIALS
    ]
    return tuple(dict.fromkeys(names))


def _find_credential_names(playbook: Playbook) -> Iterator[str]:
    """Yield every literal name of a credential or of a keychain entry."""
    for entry in playbook.keychain:
        if entry.env is None and entry.kind in ("credential", "bearer", "basic", "oauth2"):
            yield from _yield_literal(entry.credential or entry.auth)
    tasks: list[Task] = []
    for step in playbook.workflow:
        tasks += step.tool
    tasks += [entry.tool for entry in playbook.workbook]
    for task in tasks:
        yield from _yield_literal(task.auth)
        if isinstance(task, SinkTask):
            yield from _yield_literal(task.target.auth)
        if task.spec.paginate is not None and task.spec.paginate.sink is not None:
            yield from _yield_literal(task.spec.paginate.sink.target.auth)
    for step in playbook.workflow:
        if step.loop is not None and step.loop.cursor is not None:
            yield from _yield_literal(step.loop.cursor.auth)


def _yield_literal(name: object) -> Iterator[str]:
    if isinstance(name, str) and name and not is_template(name):
        yield name
