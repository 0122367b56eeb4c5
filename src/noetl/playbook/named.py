"""What a playbook names that is kept elsewhere: credentials, by the names that are written out. For children see `children`."""

from collections.abc import Iterator

from noetl.playbook.model import Playbook, SinkTask, Task
from noetl.playbook.text import is_template

HERE = frozenset({"local"})  # the database for users' tables, which a worker brings along


def literal_credentials(playbook: Playbook) -> tuple[str, ...]:
    """Credentials that are named without a template. An `auth` that names an entry of the keychain names what that names."""
    entries = {entry.name for entry in playbook.keychain}
    names = dict.fromkeys(
        name for name in _named(playbook) if name not in entries and name not in HERE
    )
    return tuple(names)


def _named(playbook: Playbook) -> Iterator[str]:
    for entry in playbook.keychain:
        if entry.env is None and entry.kind in ("credential", "bearer", "basic", "oauth2"):
            yield from _literal(entry.credential or entry.auth)
    tasks: list[Task] = [task for step in playbook.workflow for task in step.tool]
    tasks += [named.tool for named in playbook.workbook]
    for task in tasks:
        yield from _literal(task.auth)
        if isinstance(task, SinkTask):
            yield from _literal(task.target.auth)
        if task.spec.paginate is not None and task.spec.paginate.sink is not None:
            yield from _literal(task.spec.paginate.sink.target.auth)
    for step in playbook.workflow:
        if step.loop is not None and step.loop.cursor is not None:
            yield from _literal(step.loop.cursor.auth)


def _literal(name: object) -> Iterator[str]:
    if isinstance(name, str) and name and not is_template(name):
        yield name
