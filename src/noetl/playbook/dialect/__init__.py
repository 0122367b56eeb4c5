"""Older spellings, rewritten to the current one. Nothing outside this folder knows them.

`rewrite` is what `noetl convert` writes back; `expand` then spells out the short forms, which stay good style.
"""

from noetl.playbook.dialect import (
    bare_names,
    cases,
    loops,
    older,
    retries,
    routers,
    sinks,
    tasks,
    v1,
)
from noetl.playbook.dialect.editor import Editor, Node, maps
from noetl.playbook.dialect.shorthand import expand
from noetl.playbook.dialect.shorthand import tasks as listed
from noetl.playbook.model import API_VERSION

__all__ = ["Editor", "expand", "rewrite"]

_VERSIONS = ("noetl.io/v1", "noetl.io/v10", "v1", "v2", "v10")


def rewrite(document: Node, editor: Editor) -> None:
    """Rewrite in place; every rewrite is a note with its position."""
    version = document.get("apiVersion")
    if version in _VERSIONS:
        editor.note(document, "apiVersion", f"`apiVersion: {version}` is now `{API_VERSION}`")
        editor.put(document, "apiVersion", API_VERSION, document, "apiVersion")
    ordered = "steps" in document or version in ("v1", "noetl.io/v1")
    tasks.alias(document, "steps", "workflow", editor)
    v1.metadata(document, editor)
    older.tags(document, editor)
    for entry in maps(document.get("workbook")):
        v1.workbook(entry, editor)
        if isinstance(entry.get("tool"), dict):
            tasks.rewrite(entry["tool"], editor)
    for step in maps(document.get("workflow")):
        editor.step = step.get("step") if isinstance(step.get("step"), str) else None
        v1.rewrite(step, editor)
    editor.step = None
    if ordered:
        v1.imply_order(document, editor)
    for step in maps(document.get("workflow")):
        editor.step = step.get("step") if isinstance(step.get("step"), str) else None
        _step(step, document, editor)
    editor.step = None
    bare_names.rewrite(document, editor)


def _step(step: Node, document: Node, editor: Editor) -> None:
    tasks.rewrite_all(step, editor)
    older.step_output(step, editor)
    if isinstance(step.get("loop"), dict):
        loops.rewrite(step["loop"], editor)
    tasks.assignments(step, editor)
    routers.rewrite(step, editor)
    v1.admission(step, editor)
    if "retry" in step:
        retries.rewrite(step, listed(step, editor), editor)
    sinks.to_step(step, editor)
    cases.rewrite(step, document, editor)
