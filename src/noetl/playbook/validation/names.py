"""Templates: every one parses, and uses only names that can exist where it is rendered."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from noetl.playbook import selections, templates
from noetl.playbook.dialect import guards
from noetl.playbook.dialect.editor import Editor, Node, maps
from noetl.playbook.expressions import TemplateError
from noetl.playbook.findings import Code, Finding, Severity
from noetl.playbook.functions import GLOBALS
from noetl.playbook.scopes import (
    ACTIVATION,
    ENV_PREFIX,
    ITERATION,
    OUTCOME,
    PIPELINE,
    At,
    LoopKind,
    StepNames,
    Visible,
    names_at,
)
from noetl.playbook.text import Mark
from noetl.playbook.validation.world import World, child, tasks_of, text

NOT_RENDERED = frozenset({"code", "name", "kind", "desc", "provenance", "set"})
WORDS = frozenset({"true", "false", "yes", "no", "1", "0"})

_ELSEWHERE = {
    **dict.fromkeys(
        OUTCOME, "it exists once a task has finished: in policies, `set`, arcs and later tasks"
    ),
    **dict.fromkeys(PIPELINE, "it exists inside a pipeline only"),
    **dict.fromkeys(ITERATION, "it exists inside a loop only"),
    **dict.fromkeys(ACTIVATION, "it belongs to a step"),
    **{name: f"it is a function: write {name}()" for name in GLOBALS},
    "ctx": "it belongs to a running execution: steps and arcs can read it",
    "keychain": "it is resolved on the worker: use it in a task's fields",
    "env": f'only workload defaults read it: `host: "{{{{ env.HOST }}}}"` is the server\'s variable {ENV_PREFIX}HOST; '
    "for a secret use a keychain entry of kind env",
}


@dataclass(frozen=True, slots=True)
class TemplatePlace:
    """A value, where it stands, and what its templates may use: names of the language, and names of this playbook."""

    holder: Any
    key: str | int
    visible: Visible
    own: frozenset[str]
    guard: bool = False

    @property
    def names(self) -> frozenset[str]:
        return self.visible.roots | self.own


def check(world: World, editor: Editor) -> None:
    for place in _document_places(world):
        _check(place, world, editor)
    for step in world.steps:
        editor.step = text(step, "step")
        for place in _step_places(step, world):
            _check(place, world, editor)
    editor.step = None


# ---- places and scopes ----


def _document_places(world: World) -> Iterator[TemplatePlace]:
    document = world.document
    defaults = child(document, "workload")
    for number, key in enumerate(defaults):
        yield TemplatePlace(
            defaults, key, names_at(At.WORKLOAD), frozenset(list(defaults)[:number])
        )
    for entry in maps(document.get("keychain")):
        yield from _all(
            entry, names_at(At.KEYCHAIN), frozenset(world.workload), leaving=("name", "kind")
        )
    for entry in maps(document.get("workbook")):
        visible, own = _of_callers(entry, world)
        yield from _task_places(child(entry, "tool"), visible, visible, visible, own)


def _of_callers(entry: Node, world: World) -> tuple[Visible, frozenset[str]]:
    """What a workbook task may use: what every step that calls it has. Nobody calls it: whatever any step could have."""
    name = text(entry, "name")
    callers = [step for step in world.steps if any(_calls(task, name) for task in tasks_of(step))]
    found = [names_at(At.JUDGED, _step_names(step, world, _results(step))) for step in callers]
    if not found:
        loop = StepNames(LoopKind.COLLECTION)
        return replace(names_at(At.JUDGED, loop), members={}), world.everywhere | set(
            world.iterators
        )
    roots = frozenset.intersection(*(visible.roots for visible in found))
    shared = {name for visible in found for name in visible.members if name != "results"}
    members = {
        name: frozenset.union(*(visible.members.get(name, frozenset()) for visible in found))
        for name in shared
    }
    return Visible(roots, members), world.everywhere


def _calls(task: Node, name: str | None) -> bool:
    return task.get("kind") == "workbook" and text(task, "task") == name


def _step_places(step: Node, world: World) -> Iterator[TemplatePlace]:
    own = world.everywhere
    before = names_at(At.BEFORE, StepNames(scratch=world.scratch))
    loop = step.get("loop")
    if isinstance(loop, dict):
        yield from _all(loop, before, own, leaving=("iterator", "spec", "cursor"))
        yield from _all(
            child(loop, "cursor"),
            names_at(At.CLAIM, StepNames(scratch=world.scratch)),
            own,
            leaving=("kind",),
        )
    for rule in maps(child(step, "spec", "policy", "admit").get("rules")):
        yield from _guarded(rule, before, own)
    spec = child(step, "spec")
    if "pool" in spec:
        yield TemplatePlace(spec, "pool", before, frozenset(world.workload))
    yield from _pipeline_places(step, world)
    after = names_at(At.AFTER, _step_names(step, world, frozenset()))
    yield from _all(child(step, "set"), after, own)
    for arc in maps(child(step, "next").get("arcs")):
        yield from _guarded(arc, after, own)
        yield from _all(arc, after, own, leaving=("step", "when"))


def _pipeline_places(step: Node, world: World) -> Iterator[TemplatePlace]:
    """A task sees the results of those before it; of all of them when the pipeline jumps back."""
    own = world.everywhere
    returns = _jumps_back(step)
    everything = _results(step)
    earlier: frozenset[str] = everything if returns else frozenset()
    first = names_at(At.CALL, _step_names(step, world, earlier, outcome=returns))
    yield from _all(child(step, "input"), first, own)
    for task in tasks_of(step):
        call_names = _step_names(step, world, earlier, outcome=returns or bool(earlier))
        call, stored = names_at(At.CALL, call_names), names_at(At.PAGE_SINK, call_names)
        if not _is_sink(task) and (name := text(task, "name")) is not None:
            earlier |= {name}
        judged = names_at(At.JUDGED, _step_names(step, world, earlier))
        yield from _task_places(task, call, judged, stored, own)


def _step_names(
    step: Node, world: World, results: frozenset[str], *, outcome: bool = True
) -> StepNames:
    loop = step.get("loop")
    if not isinstance(loop, dict):
        return StepNames(tasks=results, outcome=outcome, scratch=world.scratch)
    kind = LoopKind.CURSOR if "cursor" in loop else LoopKind.COLLECTION
    return StepNames(kind, text(loop, "iterator") or "item", results, outcome, world.scratch)


def _results(step: Node) -> frozenset[str]:
    """Tasks that leave a result. A sink leaves none: what it stored stays the last value."""
    return frozenset(
        name
        for task in tasks_of(step)
        if not _is_sink(task) and (name := text(task, "name")) is not None
    )


def _is_sink(task: Node) -> bool:
    return task.get("kind") == "sink"


def _jumps_back(step: Node) -> bool:
    seen = {"previous"}
    for task in tasks_of(step):
        seen.add(text(task, "name") or "")
        actions = [child(rule, "then") for rule in maps(child(task, "spec", "policy").get("rules"))]
        if any(_jumps(then) and then.get("to") in seen for then in actions):
            return True
    return False


def _jumps(then: Node) -> bool:
    return then.get("do") == "jump" or then.get("exhausted") == "jump"


def _task_places(
    task: Node, call: Visible, judged: Visible, stored: Visible, own: frozenset[str]
) -> Iterator[TemplatePlace]:
    """`stored`: what the sink of a page sees."""
    yield from _all(task, call, own, leaving=(*NOT_RENDERED, "spec"))
    yield from _all(child(task, "provenance"), call, own)
    yield from _all(child(task, "set"), judged, own)
    spec = child(task, "spec")
    yield from _guarded(spec, call, own)
    for rule in maps(child(spec, "policy").get("rules")):
        yield from _guarded(rule, judged, own)
        yield from _all(child(rule, "then"), judged, own, leaving=("do", "to"))
    page = child(spec, "paginate")
    yield from _guarded(page, judged, own)
    yield from _all(page, judged, own, leaving=("when", "sink"))
    yield from _all(child(page, "sink"), stored, own)


def _guarded(node: Node, visible: Visible, own: frozenset[str]) -> Iterator[TemplatePlace]:
    if "when" in node:
        yield TemplatePlace(node, "when", visible, own, guard=True)


def _all(
    node: Node, visible: Visible, own: frozenset[str], leaving: tuple[str, ...] = ()
) -> Iterator[TemplatePlace]:
    for key in node:
        if key not in leaving:
            yield TemplatePlace(node, key, visible, own)


# ---- one place ----


def _check(place: TemplatePlace, world: World, editor: Editor) -> None:
    value = place.holder[place.key]
    if place.guard:
        _check_guard(place, value, editor)
    for holder, key, source in _texts(place.holder, place.key):
        _check_text(TemplatePlace(holder, key, place.visible, place.own), source, world, editor)


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


def _check_guard(place: TemplatePlace, value: Any, editor: Editor) -> None:
    if not isinstance(value, str) or "{%" in value or value.strip().lower() in WORDS:
        return
    if "{{" not in value:
        message = f"`when: {value[:60]}` is plain text, which is always true"
        editor.fault(
            place.holder,
            place.key,
            Code.BAD_GUARD,
            message,
            f'write "{{{{ {value[:60].strip()} }}}}"',
        )
    elif guards.expression(value) is None:
        message = (
            f"`when: {value[:60]}` has text around its braces, so it is text, which is always true"
        )
        whole = re.sub(r"\{\{[-+]?\s*|\s*[-+]?\}\}", "", value).strip()
        editor.fault(
            place.holder, place.key, Code.BAD_GUARD, message, f'write "{{{{ {whole[:80]} }}}}"'
        )
    elif guards.has_second_name(value) and re.search(r"\bevent\b", value):
        message = (
            "`step.done` and `step.failed` are understood only directly beside `event.name ==`"
        )
        hint = "write call.done for step.done, call.error for step.failed"
        editor.fault(place.holder, place.key, Code.BAD_GUARD, message, hint)


def _check_text(place: TemplatePlace, source: str, world: World, editor: Editor) -> None:
    try:
        template = templates.parse(source)
    except TemplateError as exc:
        at = within(
            editor.value_mark(place.holder, place.key), world.lines, exc.line or 1, exc.column or 1
        )
        _report(at, Code.TEMPLATE_SYNTAX, exc.message, exc.hint, "error", editor)
        return
    if template.is_literal:
        return
    if "loop_index" in selections.names(template) and "loop_index" not in place.own:
        at = _found("loop_index", place, source, world, editor)
        _report(at, Code.OLD_SPELLING, "`loop_index` is now `loop.index`", None, "note", editor)
    for name in selections.never(template, place.names):
        _unknown(name, place, source, world, editor)
    for path in sorted(selections.used_paths(template), key=str):
        _check_path(path, place, source, world, editor)
    for path in sorted(selections.asked_paths(template), key=str):
        _check_asked(path, place, source, world, editor)
    for path in sorted(selections.paths(template), key=str):
        _check_state(path, place, source, world, editor)


def _unknown(name: str, place: TemplatePlace, source: str, world: World, editor: Editor) -> None:
    hint = _ELSEWHERE.get(name)
    if hint is None and name in world.assigned and "ctx" in place.names:
        hint = f"it is set in ctx: write ctx.{name}"
    hint = hint or _meant(name, place.names)
    if hint is None and name in world.iterators:
        hint = "it is the iterator of another step"
    if hint is None and name in world.workload:
        hint = "a default may use the keys above it: move that key up"
    hint = hint or f"declare `{name}` under workload, or write workload.{name}"
    message = f"`{name}` can never exist here"
    _report(
        _found(name, place, source, world, editor),
        Code.UNKNOWN_NAME,
        message,
        hint,
        "error",
        editor,
    )


def _meant(name: str, known: Iterable[str]) -> str | None:
    close = selections.suggest(name, known)
    return f"did you mean `{close}`?" if close else None


def _check_path(
    path: tuple[str | int, ...], place: TemplatePlace, source: str, world: World, editor: Editor
) -> None:
    if len(path) < 2 or not isinstance(path[1], str):
        return
    root, name = str(path[0]), path[1]
    at = _found(f"{root}.{name}", place, source, world, editor)
    if root == "keychain" and name not in world.keychain:
        hint = _meant(name, world.keychain) or "add an entry to `keychain`"
        _report(
            at, Code.UNKNOWN_KEYCHAIN, f"the keychain has no entry `{name}`", hint, "error", editor
        )
    known = place.visible.members.get(root)
    if known is not None and root not in world.known_steps and name not in known:
        hint = _meant(name, known) or f"`{root}` has {', '.join(sorted(known)) or 'nothing'} here"
        _report(
            at, Code.UNKNOWN_NAME, f"`{root}.{name}` can never exist here", hint, "error", editor
        )
    if root in ("ctx", "vars") and name not in world.assigned:
        hint = (
            _meant(name, world.assigned) or f"set it before, for example `set: {{ctx.{name}: …}}`"
        )
        _report(at, Code.NEVER_SET, f"nothing sets `ctx.{name}`", hint, "warning", editor)


def _check_asked(
    path: tuple[str | int, ...], place: TemplatePlace, source: str, world: World, editor: Editor
) -> None:
    """`is defined` and `default` may ask for any name. One that nothing defines, and that is almost a known one, is a slip."""
    name, hint = str(path[0]), None
    if name not in place.names:
        hint = _meant(name, place.names)
    elif len(path) > 1 and isinstance(path[1], str):
        known = _known_members(name, place, world)
        hint = _meant(path[1], known) if path[1] not in known else None
        name = f"{name}.{path[1]}"
    if hint is not None:
        at = _found(name, place, source, world, editor)
        _report(
            at,
            Code.UNKNOWN_NAME,
            f"nothing in this playbook defines `{name}`",
            hint,
            "warning",
            editor,
        )


def _known_members(root: str, place: TemplatePlace, world: World) -> frozenset[str]:
    """Nothing when the members of the root cannot be known from the playbook alone."""
    if root in world.known_steps:
        return frozenset()
    if root in ("ctx", "vars"):
        return frozenset(world.assigned)
    return place.visible.members.get(root, frozenset())


def _check_state(
    path: tuple[str | int, ...], place: TemplatePlace, source: str, world: World, editor: Editor
) -> None:
    """A name that nothing sets may be set by a person; one that is almost like one that is set is a mistake, `default` or not."""
    if path[0] != "state" or len(path) < 2 or world.hides_state or path[1] in world.assigned_state:
        return
    hint = _meant(str(path[1]), world.assigned_state)
    if hint is not None:
        at = _found(f"state.{path[1]}", place, source, world, editor)
        _report(
            at, Code.NEVER_SET, f"this playbook sets no `state.{path[1]}`", hint, "warning", editor
        )


def _found(name: str, place: TemplatePlace, source: str, world: World, editor: Editor) -> Mark:
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


def _report(
    at: Mark, code: Code, message: str, hint: str | None, severity: Severity, editor: Editor
) -> None:
    editor.findings.append(
        Finding(editor.file, at.line, at.column, editor.step, code, message, hint, severity)
    )
