"""Templates: every one parses, and uses only names that can exist where it is rendered."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from noetl.playbook import selections, templates
from noetl.playbook.dialect.editor import Editor, Node, maps
from noetl.playbook.expressions import TemplateError
from noetl.playbook.findings import Code, Finding, Severity
from noetl.playbook.text import Mark
from noetl.playbook.validation.world import World, child, tasks_of, text

OUTCOME = frozenset({"output", "outcome", "response", "result", "error", "event"})
ACTIVATION = frozenset({"input", "args", "step", "iter", "event"})
PIPELINE = frozenset({"_prev", "_task", "_attempt", "results", "keychain"})
LOOP = frozenset({"loop", "_index"})
NOT_RENDERED = frozenset({"code", "name", "kind", "desc"})
WORDS = frozenset({"true", "false", "yes", "no", "1", "0"})

_ELSEWHERE = {
    **dict.fromkeys(OUTCOME, "it exists once a task has finished: in policies, `set`, arcs and later tasks"),
    **dict.fromkeys(PIPELINE, "it exists inside a pipeline only"),
    **dict.fromkeys(LOOP, "it exists inside a loop only"),
    **dict.fromkeys(ACTIVATION, "it belongs to a step"),
    "keychain": "it is resolved on the worker: use it in a task's fields",
    "env": "the environment is not visible to templates: use a keychain entry of kind env",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A value, where it stands, and what its templates may use."""

    holder: Any
    key: str | int
    scope: frozenset[str]
    guard: bool = False


def check(world: World, editor: Editor) -> None:
    for place in _document_places(world):
        _check(place, world, editor)
    for step in world.steps:
        editor.step = text(step, "step")
        for place in _step_places(step):
            _check(place, world, editor)
    editor.step = None


# ---- places and scopes ----


def _document_places(world: World) -> Iterator[Place]:
    document = world.document
    anything = frozenset({"*"})  # the payload may bring any name
    yield from _all(child(document, "workload"), anything)
    for entry in maps(document.get("keychain")):
        yield from _all(entry, frozenset({"keychain"}), leaving=("name", "kind"))
    for entry in maps(document.get("workbook")):
        yield from _task_places(child(entry, "tool"), anything)


def _step_places(step: Node) -> Iterator[Place]:
    before = ACTIVATION
    loop = step.get("loop")
    inside = before | OUTCOME | PIPELINE | _task_names(step)
    after = before | OUTCOME
    if isinstance(loop, dict):
        yield from _all(loop, before, leaving=("iterator", "spec", "cursor"))
        yield from _all(child(loop, "cursor"), before | {"keychain"}, leaving=("kind",))
        inside |= LOOP | {text(loop, "iterator") or "item"}
        after |= LOOP
    for rule in maps(child(step, "spec", "policy", "admit").get("rules")):
        yield from _guarded(rule, before)
    yield from _all(child(step, "input"), inside)
    for task in tasks_of(step):
        yield from _task_places(task, inside)
    yield from _all(child(step, "set"), after)
    for arc in maps(child(step, "next").get("arcs")):
        yield from _guarded(arc, after)
        yield from _all(arc, after, leaving=("step", "when"))


def _task_names(step: Node) -> frozenset[str]:
    return frozenset(name for task in tasks_of(step) if (name := text(task, "name")) is not None)


def _task_places(task: Node, scope: frozenset[str]) -> Iterator[Place]:
    yield from _all(task, scope, leaving=(*NOT_RENDERED, "spec"))
    spec = child(task, "spec")
    yield from _guarded(spec, scope)
    for rule in maps(child(spec, "policy").get("rules")):
        yield from _guarded(rule, scope)
        yield from _all(child(rule, "then"), scope, leaving=("do", "to"))
    page = child(spec, "paginate")
    yield from _guarded(page, scope)
    yield from _all(page, scope, leaving=("when",))


def _guarded(node: Node, scope: frozenset[str]) -> Iterator[Place]:
    if "when" in node:
        yield Place(node, "when", scope, guard=True)


def _all(node: Node, scope: frozenset[str], leaving: tuple[str, ...] = ()) -> Iterator[Place]:
    for key in node:
        if key not in leaving:
            yield Place(node, key, scope)


# ---- one place ----


def _check(place: Place, world: World, editor: Editor) -> None:
    value = place.holder[place.key]
    if place.guard:
        _check_guard(place, value, editor)
    for holder, key, source in _texts(place.holder, place.key):
        _check_text(Place(holder, key, place.scope), source, world, editor)


def _texts(holder: Any, key: str | int) -> Iterator[tuple[Any, str | int, str]]:
    """Every text at and below a place, keys of mappings included."""
    value = holder[key]
    if isinstance(value, str):
        yield holder, key, value
    elif isinstance(value, dict):
        for name in value:
            if "{{" in name:
                yield value, name, name
            yield from _texts(value, name)
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from _texts(value, index)


def _check_guard(place: Place, value: Any, editor: Editor) -> None:
    if isinstance(value, str) and "{{" not in value and "{%" not in value and value.strip().lower() not in WORDS:
        message = f"`when: {value[:60]}` is plain text, which is always true"
        editor.fault(place.holder, place.key, Code.BAD_GUARD, message, f'write "{{{{ {value[:60].strip()} }}}}"')


def _check_text(place: Place, source: str, world: World, editor: Editor) -> None:
    try:
        template = templates.parse(source)
    except TemplateError as exc:
        at = within(editor.value_mark(place.holder, place.key), world.lines, exc.line or 1, exc.column or 1)
        _report(at, Code.TEMPLATE_SYNTAX, exc.message, exc.hint, "error", editor)
        return
    if template.is_literal:
        return
    if "*" not in place.scope:
        known = {name for name in selections.names(template) if name in place.scope or name in world.everywhere}
        for name in selections.never(template, known):
            _unknown(name, place, source, world, editor)
    for path in sorted(selections.paths(template), key=str):
        _check_path(path, place, source, world, editor)


def _unknown(name: str, place: Place, source: str, world: World, editor: Editor) -> None:
    close = selections.suggest(name, place.scope | world.everywhere)
    hint = _ELSEWHERE.get(name) or (f"did you mean `{close}`?" if close else None)
    if hint is None and name in world.iterators:
        hint = "it is the iterator of another step"
    hint = hint or f"declare `{name}` under workload, or write workload.{name}"
    message = f"`{name}` can never exist here"
    _report(_found(name, place, source, world, editor), Code.UNKNOWN_NAME, message, hint, "error", editor)


def _check_path(path: tuple[str | int, ...], place: Place, source: str, world: World, editor: Editor) -> None:
    if len(path) < 2 or not isinstance(path[1], str):
        return
    root, name = path[0], path[1]
    if root == "keychain" and name not in world.keychain:
        close = selections.suggest(name, world.keychain)
        hint = f"did you mean `{close}`?" if close else "add an entry to `keychain`"
        at = _found(f"keychain.{name}", place, source, world, editor)
        _report(at, Code.UNKNOWN_KEYCHAIN, f"the keychain has no entry `{name}`", hint, "error", editor)
    asked = "default" in source or "defined" in source
    if root in ("ctx", "vars") and name not in world.assigned and not asked and world.assigned:
        close = selections.suggest(name, world.assigned)
        if close is not None:
            at = _found(f"{root}.{name}", place, source, world, editor)
            _report(at, Code.NEVER_SET, f"nothing sets `ctx.{name}`", f"did you mean `{close}`?", "warning", editor)


def _found(name: str, place: Place, source: str, world: World, editor: Editor) -> Mark:
    """Where the name stands: the first place in the text that spells it."""
    offset = max(source.find(name), 0)
    line, column = source.count("\n", 0, offset) + 1, offset - source.rfind("\n", 0, offset)
    return within(editor.value_mark(place.holder, place.key), world.lines, line, column)


def within(mark: Mark, lines: list[str], line: int, column: int) -> Mark:
    """The position in the file of a position inside a text that starts at `mark`."""
    if mark.style == "|":
        return Mark(mark.line + line, _indent(lines, mark.line) + column)
    if mark.style == ">":
        return Mark(mark.line + 1, _indent(lines, mark.line) + 1)
    if line > 1 or mark.line > len(lines):
        return mark
    at = mark.column + (mark.style in ("'", '"') and 1) + column - 1
    return Mark(mark.line, at if at <= len(lines[mark.line - 1]) else mark.column)


def _indent(lines: list[str], after: int) -> int:
    body = next((line for line in lines[after:] if line.strip()), "")
    return len(body) - len(body.lstrip(" "))


def _report(at: Mark, code: Code, message: str, hint: str | None, severity: Severity, editor: Editor) -> None:
    editor.findings.append(Finding(editor.file, at.line, at.column, editor.step, code, message, hint, severity))
