"""Templates: every template must parse and use only names that can exist where it is rendered."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from noetl.playbook.dialect import guards
from noetl.playbook.dialect.editor import Editor, Node, list_maps
from noetl.playbook.findings import Code, Finding, Severity
from noetl.playbook.text import Mark
from noetl.playbook.validation.document_facts import DocumentFacts, get_child, get_text, list_tasks
from noetl.template import used_names
from noetl.template.errors import TemplateError, suggest
from noetl.template.functions.globals import GLOBALS
from noetl.template.parsing import parse
from noetl.template.scopes import (
    ACTIVATION_NAMES,
    ENV_PREFIX,
    LOOP_ITEM_NAMES,
    OUTCOME_NAMES,
    PIPELINE_NAMES,
    LoopKind,
    ScopePlace,
    StepNames,
    VisibleNames,
    list_names_at,
)

TemplatePath = tuple[str | int, ...]  # a name and its members: ("ctx", "total")
NOT_RENDERED = frozenset({"code", "name", "kind", "desc", "provenance", "set"})
BOOLEAN_WORDS = frozenset({"true", "false", "yes", "no", "1", "0"})

_HINTS_BY_NAME = {
    **dict.fromkeys(
        OUTCOME_NAMES,
        "it exists once a task has finished: in policies, `set`, arcs and later tasks",
    ),
    **dict.fromkeys(PIPELINE_NAMES, "it exists inside a pipeline only"),
    **dict.fromkeys(LOOP_ITEM_NAMES, "it exists inside a loop only"),
    **dict.fromkeys(ACTIVATION_NAMES, "it belongs to a step"),
    **{name: f"it is a function: write {name}()" for name in GLOBALS},
    "ctx": "it belongs to a running execution: steps and arcs can read it",
    "keychain": "it is resolved on the worker: use it in a task's fields",
    "env": f'only workload defaults read it: `host: "{{{{ env.HOST }}}}"` is the server\'s variable {ENV_PREFIX}HOST; '
    "for a secret use a keychain entry of kind env",
}


class TemplatePlace(Struct, frozen=True):
    """A value, its place in the document, and the names its templates may use: those of the
    language (`visible`) and those of this playbook (`own`).
    """

    holder: Any
    key: str | int
    visible: VisibleNames
    own: frozenset[str]
    guard: bool = False

    @property
    def names(self) -> frozenset[str]:
        return self.visible.roots | self.own


def check(world: DocumentFacts, editor: Editor) -> None:
    for place in _document_places(world):
        _check_place(place, world, editor)
    for step in world.steps:
        editor.step = get_text(step, "step")
        for place in _step_places(step, world):
            _check_place(place, world, editor)
    editor.step = None


# ---- places and scopes ----


def _document_places(world: DocumentFacts) -> Iterator[TemplatePlace]:
    document = world.document
    defaults = get_child(document, "workload")
    for number, key in enumerate(defaults):
        keys_above = frozenset(list(defaults)[:number])
        yield TemplatePlace(defaults, key, list_names_at(ScopePlace.WORKLOAD), keys_above)
    for entry in list_maps(document.get("keychain")):
        own = frozenset(world.workload_keys)
        yield from _member_places(
            entry, list_names_at(ScopePlace.KEYCHAIN), own, leaving=("name", "kind")
        )
    for entry in list_maps(document.get("workbook")):
        visible, own = _find_caller_names(entry, world)
        yield from _task_places(get_child(entry, "tool"), visible, visible, visible, own)


def _find_caller_names(entry: Node, world: DocumentFacts) -> tuple[VisibleNames, frozenset[str]]:
    """The names a workbook task may use: those that every step that calls it has.

    If no step calls it, all names that any step could have.
    """
    name = get_text(entry, "name")
    callers: list[Node] = []
    for step in world.steps:
        if any(_calls_task(task, name) for task in list_tasks(step)):
            callers.append(step)
    if not callers:
        loop = StepNames(LoopKind.COLLECTION)
        visible = replace(list_names_at(ScopePlace.JUDGED, loop), members={})
        return visible, world.shared_names | set(world.iterator_names)
    scopes: list[VisibleNames] = []
    for step in callers:
        names_of_step = _make_step_names(step, world, _list_result_names(step))
        scopes.append(list_names_at(ScopePlace.JUDGED, names_of_step))
    roots = frozenset.intersection(*(scope.roots for scope in scopes))
    members: dict[str, frozenset[str]] = {}
    for scope in scopes:
        for root, names in scope.members.items():
            if root != "results":
                members[root] = members.get(root, frozenset()) | names
    return VisibleNames(roots, members), world.shared_names


def _calls_task(task: Node, name: str | None) -> bool:
    return task.get("kind") == "workbook" and get_text(task, "task") == name


def _step_places(step: Node, world: DocumentFacts) -> Iterator[TemplatePlace]:
    own = world.shared_names
    scratch = StepNames(scratch=world.scratch_names)
    before = list_names_at(ScopePlace.BEFORE, scratch)
    loop = step.get("loop")
    if isinstance(loop, dict):
        yield from _member_places(loop, before, own, leaving=("iterator", "spec", "cursor"))
        claim = list_names_at(ScopePlace.CLAIM, scratch)
        yield from _member_places(get_child(loop, "cursor"), claim, own, leaving=("kind",))
    for rule in list_maps(get_child(step, "spec", "policy", "admit").get("rules")):
        yield from _guard_places(rule, before, own)
    spec = get_child(step, "spec")
    if "pool" in spec:
        yield TemplatePlace(spec, "pool", before, frozenset(world.workload_keys))
    yield from _pipeline_places(step, world)
    after = list_names_at(ScopePlace.AFTER, _make_step_names(step, world, frozenset()))
    yield from _member_places(get_child(step, "set"), after, own)
    for arc in list_maps(get_child(step, "next").get("arcs")):
        yield from _guard_places(arc, after, own)
        yield from _member_places(arc, after, own, leaving=("step", "when"))


def _pipeline_places(step: Node, world: DocumentFacts) -> Iterator[TemplatePlace]:
    """A task sees the results of the tasks before it; of all tasks if the pipeline jumps back."""
    own = world.shared_names
    jumps_back = _jumps_back(step)
    earlier: frozenset[str] = frozenset()
    if jumps_back:
        earlier = _list_result_names(step)
    first = list_names_at(
        ScopePlace.CALL, _make_step_names(step, world, earlier, outcome=jumps_back)
    )
    yield from _member_places(get_child(step, "input"), first, own)
    for task in list_tasks(step):
        call_names = _make_step_names(step, world, earlier, outcome=jumps_back or bool(earlier))
        call = list_names_at(ScopePlace.CALL, call_names)
        stored = list_names_at(ScopePlace.PAGE_SINK, call_names)
        earlier |= _get_result_name(task)
        judged = list_names_at(ScopePlace.JUDGED, _make_step_names(step, world, earlier))
        yield from _task_places(task, call, judged, stored, own)


def _make_step_names(
    step: Node, world: DocumentFacts, results: frozenset[str], *, outcome: bool = True
) -> StepNames:
    loop = step.get("loop")
    if not isinstance(loop, dict):
        return StepNames(tasks=results, outcome=outcome, scratch=world.scratch_names)
    kind = LoopKind.CURSOR if "cursor" in loop else LoopKind.COLLECTION
    return StepNames(
        kind, get_text(loop, "iterator") or "item", results, outcome, world.scratch_names
    )


def _list_result_names(step: Node) -> frozenset[str]:
    """The names of the tasks that have a result."""
    return frozenset().union(*map(_get_result_name, list_tasks(step)))


def _get_result_name(task: Node) -> frozenset[str]:
    """The name of the task if it has a result. After a sink, the stored value stays the last value."""
    name = get_text(task, "name")
    if name is None or _is_sink(task):
        return frozenset()
    return frozenset({name})


def _is_sink(task: Node) -> bool:
    return task.get("kind") == "sink"


def _jumps_back(step: Node) -> bool:
    seen = {"previous"}
    for task in list_tasks(step):
        seen.add(get_text(task, "name") or "")
        for rule in list_maps(get_child(task, "spec", "policy").get("rules")):
            then = get_child(rule, "then")
            if _is_jump(then) and then.get("to") in seen:
                return True
    return False


def _is_jump(then: Node) -> bool:
    return then.get("do") == "jump" or then.get("exhausted") == "jump"


def _task_places(
    task: Node, call: VisibleNames, judged: VisibleNames, stored: VisibleNames, own: frozenset[str]
) -> Iterator[TemplatePlace]:
    """The places of a task. `stored` is what the sink of a page sees."""
    yield from _member_places(task, call, own, leaving=(*NOT_RENDERED, "spec"))
    yield from _member_places(get_child(task, "provenance"), call, own)
    yield from _member_places(get_child(task, "set"), judged, own)
    spec = get_child(task, "spec")
    yield from _guard_places(spec, call, own)
    for rule in list_maps(get_child(spec, "policy").get("rules")):
        yield from _guard_places(rule, judged, own)
        yield from _member_places(get_child(rule, "then"), judged, own, leaving=("do", "to"))
    page = get_child(spec, "paginate")
    yield from _guard_places(page, judged, own)
    yield from _member_places(page, judged, own, leaving=("when", "sink"))
    yield from _member_places(get_child(page, "sink"), stored, own)


def _guard_places(
    node: Node, visible: VisibleNames, own: frozenset[str]
) -> Iterator[TemplatePlace]:
    if "when" in node:
        yield TemplatePlace(node, "when", visible, own, guard=True)


def _member_places(
    node: Node, visible: VisibleNames, own: frozenset[str], leaving: tuple[str, ...] = ()
) -> Iterator[TemplatePlace]:
    for key in node:
        if key not in leaving:
            yield TemplatePlace(node, key, visible, own)


# ---- one place ----


def _check_place(place: TemplatePlace, world: DocumentFacts, editor: Editor) -> None:
    value = place.holder[place.key]
    if place.guard:
        _check_guard(place, value, editor)
    for holder, key, source in _iterate_texts(place.holder, place.key):
        text_place = TemplatePlace(holder, key, place.visible, place.own)
        TemplateCheck(text_place, source, world, editor).run()


def _iterate_texts(holder: Any, key: str | int) -> Iterator[tuple[Any, str | int, str]]:
    """Yield every text at and below a place, including the keys of mappings."""
    value = holder[key]
    if isinstance(value, str):
        yield holder, key, value
    elif isinstance(value, dict):
        for name in value:
            if "{{" in name:
                yield value, name, name
            yield from _iterate_texts(value, name)
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from _iterate_texts(value, index)


def _check_guard(place: TemplatePlace, value: Any, editor: Editor) -> None:
    if not isinstance(value, str) or "{%" in value or value.strip().lower() in BOOLEAN_WORDS:
        return
    if "{{" not in value:
        message = f"`when: {value[:60]}` is plain text, which is always true"
        hint = f'write "{{{{ {value[:60].strip()} }}}}"'
        editor.add_error(place.holder, place.key, Code.BAD_GUARD, message, hint)
    elif guards.parse_guard(value) is None:
        message = (
            f"`when: {value[:60]}` has text around its braces, so it is text, which is always true"
        )
        without_braces = re.sub(r"\{\{[-+]?\s*|\s*[-+]?\}\}", "", value).strip()
        hint = f'write "{{{{ {without_braces[:80]} }}}}"'
        editor.add_error(place.holder, place.key, Code.BAD_GUARD, message, hint)
    elif guards.has_second_name(value) and re.search(r"\bevent\b", value):
        message = (
            "`step.done` and `step.failed` are understood only directly beside `event.name ==`"
        )
        hint = "write call.done for step.done, call.error for step.failed"
        editor.add_error(place.holder, place.key, Code.BAD_GUARD, message, hint)


class TemplateCheck(Struct, frozen=True):
    """The check of one text with templates."""

    place: TemplatePlace
    source: str
    world: DocumentFacts
    editor: Editor

    def run(self) -> None:
        try:
            template = parse(self.source)
        except TemplateError as exc:
            at = self._locate(exc.line or 1, exc.column or 1)
            self._add_finding(at, Code.TEMPLATE_SYNTAX, exc.message, exc.hint, "error")
            return
        if template.is_literal:
            return
        if "loop_index" in used_names.find_names(template) and "loop_index" not in self.place.own:
            message = "`loop_index` is now `loop.index`"
            at = self._locate_name("loop_index")
            self._add_finding(at, Code.OLD_SPELLING, message, None, "note")
        for name in used_names.find_undefined_names(template, self.place.names):
            self._report_unknown(name)
        for path in sorted(used_names.find_required_paths(template), key=str):
            self._check_used_path(path)
        for path in sorted(used_names.find_tested_paths(template), key=str):
            self._check_asked_path(path)
        for path in sorted(used_names.find_paths(template), key=str):
            self._check_state_path(path)

    def _report_unknown(self, name: str) -> None:
        message = f"`{name}` can never exist here"
        hint = _hint_for_unknown(name, self.place, self.world)
        self._add_finding(self._locate_name(name), Code.UNKNOWN_NAME, message, hint, "error")

    def _check_used_path(self, path: TemplatePath) -> None:
        if len(path) < 2 or not isinstance(path[1], str):
            return
        world = self.world
        root, name = str(path[0]), path[1]
        at = self._locate_name(f"{root}.{name}")
        if root == "keychain" and name not in world.keychain_entries:
            message = f"the keychain has no entry `{name}`"
            hint = _suggest_name(name, world.keychain_entries) or "add an entry to `keychain`"
            self._add_finding(at, Code.UNKNOWN_KEYCHAIN, message, hint, "error")
        known = self.place.visible.members.get(root)
        if known is not None and root not in world.known_steps and name not in known:
            message = f"`{root}.{name}` can never exist here"
            members = ", ".join(sorted(known)) or "nothing"
            hint = _suggest_name(name, known) or f"`{root}` has {members} here"
            self._add_finding(at, Code.UNKNOWN_NAME, message, hint, "error")
        if root in ("ctx", "vars") and name not in world.assigned_names:
            message = f"nothing sets `ctx.{name}`"
            example = f"set it before, for example `set: {{ctx.{name}: …}}`"
            hint = _suggest_name(name, world.assigned_names) or example
            self._add_finding(at, Code.NEVER_SET, message, hint, "warning")

    def _check_asked_path(self, path: TemplatePath) -> None:
        """Warn if a name after `is defined` or `default` is probably misspelled.

        They may ask for any name. A name that nothing defines and that resembles a known one is a
        slip.
        """
        name, hint = str(path[0]), None
        if name not in self.place.names:
            hint = _suggest_name(name, self.place.names)
        elif len(path) > 1 and isinstance(path[1], str):
            known = _known_members(name, self.place, self.world)
            name = f"{name}.{path[1]}"
            if path[1] not in known:
                hint = _suggest_name(path[1], known)
        if hint is not None:
            message = f"nothing in this playbook defines `{name}`"
            at = self._locate_name(name)
            self._add_finding(at, Code.UNKNOWN_NAME, message, hint, "warning")

    def _check_state_path(self, path: TemplatePath) -> None:
        """Warn if a state name resembles one that the playbook sets, with or without `default`.

        Other names that the playbook does not set may be set by a person.
        """
        if path[0] != "state" or len(path) < 2:
            return
        name = path[1]
        if self.world.hides_state or name in self.world.assigned_state:
            return
        hint = _suggest_name(str(name), self.world.assigned_state)
        if hint is not None:
            message = f"this playbook sets no `state.{name}`"
            at = self._locate_name(f"state.{name}")
            self._add_finding(at, Code.NEVER_SET, message, hint, "warning")

    def _locate_name(self, name: str) -> Mark:
        """The position of the name: the first place in the text that spells it."""
        offset = max(self.source.find(name), 0)
        line = self.source.count("\n", 0, offset) + 1
        column = offset - self.source.rfind("\n", 0, offset)
        return self._locate(line, column)

    def _locate(self, line: int, column: int) -> Mark:
        mark = self.editor.get_value_mark(self.place.holder, self.place.key)
        return locate_within(mark, self.world.lines, line, column)

    def _add_finding(
        self, at: Mark, code: Code, message: str, hint: str | None, severity: Severity
    ) -> None:
        file, step = self.editor.file, self.editor.step
        finding = Finding(file, at.line, at.column, step, code, message, hint, severity)
        self.editor.findings.append(finding)


def _hint_for_unknown(name: str, place: TemplatePlace, world: DocumentFacts) -> str:
    if name in _HINTS_BY_NAME:
        return _HINTS_BY_NAME[name]
    if name in world.assigned_names and "ctx" in place.names:
        return f"it is set in ctx: write ctx.{name}"
    hint = _suggest_name(name, place.names)
    if hint is not None:
        return hint
    if name in world.iterator_names:
        return "it is the iterator of another step"
    if name in world.workload_keys:
        return "a default may use the keys above it: move that key up"
    return f"declare `{name}` under workload, or write workload.{name}"


def _suggest_name(name: str, known: Iterable[str]) -> str | None:
    close = suggest(name, known)
    if not close:
        return None
    return f"did you mean `{close}`?"


def _known_members(root: str, place: TemplatePlace, world: DocumentFacts) -> frozenset[str]:
    """The members of a root; empty if the playbook alone does not define them."""
    if root in world.known_steps:
        return frozenset()
    if root in ("ctx", "vars"):
        return frozenset(world.assigned_names)
    return place.visible.members.get(root, frozenset())


def locate_within(
    mark: Mark,
    lines: list[str],
    line: int,
    column: int,
) -> Mark:
    """The position in the file of a position inside a text that starts at `mark`."""
    if mark.style == "|":
        return Mark(mark.line + line, _find_indent(lines, mark.line) + column)
    if mark.style == ">":
        return Mark(mark.line + 1, _find_indent(lines, mark.line) + 1)
    if line > 1 or mark.line > len(lines):
        return mark
    is_quoted = mark.style in ("'", '"')
    at = mark.column + int(is_quoted) + column - 1
    if at > len(lines[mark.line - 1]):
        at = mark.column
    return Mark(mark.line, at)


def _find_indent(lines: list[str], after: int) -> int:
    body = next((line for line in lines[after:] if line.strip()), "")
    return len(body) - len(body.lstrip(" "))
