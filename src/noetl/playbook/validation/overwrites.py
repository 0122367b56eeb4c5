"""Writes that lose data silently: writes of an item or a page that replace those of the one before,
so that only the last is left, and sinks that have nothing to store.

A target differs between items if one of its templates does. Names that may be set between items
(`ctx`, `state`, `input`) count as different; so do names of tasks. If the `when` of a task differs
between items, the task may be meant for one of them.
"""

from collections.abc import Iterator
from typing import Any

from noetl.playbook.dialect.editor import Editor, Node, list_maps
from noetl.playbook.findings import Code, Severity
from noetl.playbook.validation.document_facts import (
    DocumentFacts,
    get_child,
    get_literal,
    get_text,
    list_tasks,
)
from noetl.template.errors import TemplateError
from noetl.template.functions.globals import NOT_REPEATABLE
from noetl.template.scopes import IDENTITY_NAMES, LOOP_ITEM_NAMES
from noetl.template.used_names import find_names

_REPLACING_MODES = ("replace", "overwrite")
_DYNAMIC_OPTION = "partitionoverwritemode"


def check(world: DocumentFacts, editor: Editor) -> None:
    for step in world.steps:
        editor.step = get_text(step, "step")
        fixed = _list_fixed_names(step, world)
        _check_first_task(step, editor)
        for task in list_tasks(step):
            _check_pages(task, fixed | _list_item_names(step), editor)
            if _has_items(step):
                _check_items(step, task, fixed, editor)
    editor.step = None


def _check_first_task(step: Node, editor: Editor) -> None:
    """A sink without `data` stores the value of the task before it. The first task has no task
    before it.
    """
    for task in list_tasks(step)[:1]:
        if get_literal(task.get("kind")) == "sink" and task.get("data") is None:
            message = "no task comes before this sink, so it has nothing to store: it needs `data`"
            editor.add_error(task, "kind", Code.MISSING_FIELD, message, 'data: "{{ load.rows }}"')


def _list_fixed_names(step: Node, world: DocumentFacts) -> frozenset[str]:
    """Names with one value for all items of a loop."""
    own = {get_text(task, "name") or "" for task in list_tasks(step)}
    own.add(get_text(step, "step") or "")
    return (world.shared_names | IDENTITY_NAMES | {"workload"}) - own - _list_item_names(step)


def _list_item_names(step: Node) -> frozenset[str]:
    """Names with one value for all pages of an item."""
    if not isinstance(step.get("loop"), dict):
        return frozenset()
    return LOOP_ITEM_NAMES | {"iter", get_text(step["loop"], "iterator") or "item"}


def _has_items(step: Node) -> bool:
    """Whether the step is a loop that may have more than one item."""
    loop = step.get("loop")
    if not isinstance(loop, dict):
        return False
    items = loop.get("in")
    return not (isinstance(items, list) and len(items) < 2)


# ---- pages ----


def _check_pages(task: Node, fixed: frozenset[str], editor: Editor) -> None:
    if not get_child(task, "spec", "paginate", "next_call"):
        return  # it polls: the last answer is the one that counts
    target = get_child(task, "spec", "paginate", "sink", "target")
    if get_literal(target.get("mode")) in _REPLACING_MODES and not _may_differ(target, fixed):
        message = (
            "every page replaces what the page before it wrote: only the last page would be left"
        )
        hint = "mode: insert adds the rows of each page; mode: upsert with a key may be repeated"
        editor.add_error(target, "mode", Code.LAST_WRITE_WINS, message, hint)


# ---- items ----


def _check_items(
    step: Node,
    task: Node,
    fixed: frozenset[str],
    editor: Editor,
) -> None:
    if _may_differ(get_child(task, "spec").get("when"), fixed):
        return
    target = _find_replaced_target(task)
    if not target or _may_differ(target, fixed) or _is_dynamic(task, target):
        return
    is_doubtful = bool(target.get("partition_by")) or _may_leave(step)
    severity: Severity = "warning" if is_doubtful else "error"
    message = "every item of the loop replaces what the item before it wrote: only the last item would be left"
    place = "table" if target.get("table") else "path"
    iterator = get_text(step["loop"], "iterator") or "item"
    hint = f"use {{{{ {iterator} }}}} or {{{{ loop.index }}}} in `{place}`, add rows (mode: append), or write after the loop"
    key = "mode" if "mode" in target else place
    editor.add_finding(target, key, Code.LAST_WRITE_WINS, message, hint, severity)


def _find_replaced_target(task: Node) -> Node:
    """The target that the task replaces as a whole; empty if it adds to its target."""
    kind = task.get("kind")
    target = get_child(task, "target" if kind in ("sink", "transfer") else "output")
    mode = target.get("mode")
    if mode is None:
        is_replaced = kind == "spark" and bool(target.get("path"))
    else:
        is_replaced = get_literal(mode) in _REPLACING_MODES
    return target if is_replaced else {}


def _is_dynamic(task: Node, target: Node) -> bool:
    """Whether an option or a setting says which partitions Spark replaces."""
    options = [*get_child(target, "options"), *get_child(task, "conf")]
    return any(str(name).lower().endswith(_DYNAMIC_OPTION) for name in options)


def _may_leave(step: Node) -> bool:
    """Whether an item may end before its write."""
    for task in list_tasks(step):
        for rule in list_maps(get_child(task, "spec", "policy").get("rules")):
            then = get_child(rule, "then")
            if "break" in (then.get("do"), then.get("exhausted")):
                return True
    return False


# ---- templates ----


def _may_differ(value: Any, fixed: frozenset[str]) -> bool:
    """Whether a template in the value may have another result each time."""
    return any(_may_change(source, fixed) for source in _iterate_texts(value))


def _may_change(source: str, fixed: frozenset[str]) -> bool:
    if "{{" not in source and "{%" not in source:
        return False
    try:
        names = find_names(source)
    except TemplateError:
        return True  # it does not parse, which is reported elsewhere
    return bool(names - fixed) or any(f"{name}(" in source for name in NOT_REPEATABLE)


def _iterate_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from _iterate_texts(member)
    elif isinstance(value, list):
        for item in value:
            yield from _iterate_texts(item)
