"""Rewrites older spellings to the current one, in place and without I/O. Nothing outside this
folder knows the older spellings.

`noetl convert` writes back the result of `rewrite`. `expand` then spells out the short forms, which
stay good style. Only the other modules of `playbook` may import it.
"""

from noetl.playbook.dialect import (
    bare_names,
    cases,
    loops,
    older_keys,
    retries,
    routers,
    sinks,
    tasks,
    v1,
)
from noetl.playbook.dialect.editor import Editor, Node, get_text_member, list_maps
from noetl.playbook.dialect.shorthand import expand
from noetl.playbook.dialect.shorthand import expand_tasks as listed
from noetl.playbook.model import API_VERSION

__all__ = ["Editor", "expand", "rewrite"]

_VERSIONS = ("noetl.io/v1", "noetl.io/v10", "v1", "v2", "v10")


def rewrite(document: Node, editor: Editor) -> None:
    """Rewrite the document in place. Every rewrite is reported as a note with its position."""
    version = document.get("apiVersion")
    if version in _VERSIONS:
        editor.add_note(document, "apiVersion", f"`apiVersion: {version}` is now `{API_VERSION}`")
        editor.put(document, "apiVersion", API_VERSION, document, "apiVersion")
    ordered = "steps" in document or version in ("v1", "noetl.io/v1")
    tasks.rename_older_key(document, "steps", "workflow", editor)
    v1.move_metadata(document, editor)
    older_keys.rewrite_tags(document, editor)
    for entry in list_maps(document.get("workbook")):
        v1.rewrite_workbook_task(entry, editor)
        if isinstance(entry.get("tool"), dict):
            tasks.rewrite(entry["tool"], editor)
    for step in list_maps(document.get("workflow")):
        editor.step = get_text_member(step, "step")
        v1.rewrite(step, editor)
    editor.step = None
    if ordered:
        v1.imply_order(document, editor)
    for step in list_maps(document.get("workflow")):
        editor.step = get_text_member(step, "step")
        _rewrite_step(step, document, editor)
    editor.step = None
    bare_names.rewrite(document, editor)


def _rewrite_step(step: Node, document: Node, editor: Editor) -> None:
    tasks.rewrite_all(step, editor)
    older_keys.move_step_output(step, editor)
    if isinstance(step.get("loop"), dict):
        loops.rewrite(step["loop"], editor)
    tasks.rewrite_assignments(step, editor)
    routers.rewrite(step, editor)
    v1.rewrite_admission(step, editor)
    if "retry" in step:
        retries.rewrite(step, listed(step, editor), editor)
    sinks.rewrite_step_sink(step, editor)
    cases.rewrite(step, document, editor)
