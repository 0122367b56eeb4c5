"""`case`: rules on events, taken apart into arcs, assignments, storage tasks and policies.

A rule fires at one of three places. *In the pipeline* (call.done, step.exit, loop.item): its tasks and sinks join the
end of the pipeline under a guard, its retry and fail become policy. *On an error* (call.error): policy rules, and
tasks that only a jump reaches. *At the router* (every event that ends the step): arcs and `set`; after a loop, tasks
get a step of their own. The first matching rule of an event wins, so a guard also says that no earlier rule of its
event matched.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from noetl.playbook.dialect import guards, retries, routers, sinks
from noetl.playbook.dialect import tasks as tools
from noetl.playbook.dialect.editor import Editor, Node, Nodes, maps
from noetl.playbook.dialect.shorthand import arcs, tasks, unlabel
from noetl.playbook.findings import Code

_ACTIONS = ("next", "set", "vars", "sink", "retry", "fail", "tasks")
_IN_PLACE = dict.fromkeys(guards.EVENTS.values(), guards.TRUE)
_AT_ROUTER = {
    **_IN_PLACE,
    "error": guards.FAILED,
    "done": guards.WELL,
    "exit": guards.WELL,
    "loop": "event.name == 'loop.done'",
}


@dataclass(frozen=True, slots=True)
class CaseRule:
    node: Node
    then: Node
    expression: str
    events: frozenset[str]

    def meets(self, other: "CaseRule") -> bool:
        """Whether both can concern one event."""
        if not self.events or not other.events:
            return True
        return bool(_moments(self.events) & _moments(other.events))

    @property
    def on_error(self) -> bool:
        return self.events == {"error"}

    @property
    def after_loop(self) -> bool:
        return self.events == {"loop"}

    @property
    def works(self) -> bool:
        """Whether it asks anything of the worker."""
        asked = {"retry", "fail", "sink", "tasks"} & self.then.keys() or (
            self.on_error and _only_set(self.then)
        )
        return bool(asked) and not self.after_loop

    @property
    def in_place(self) -> str:
        return guards.without_events(self.expression, _IN_PLACE)

    @property
    def at_router(self) -> str:
        about_error = self.events == {"exit"} and "error" in self.expression
        return guards.without_events(
            self.expression, {**_AT_ROUTER, "exit": guards.TRUE} if about_error else _AT_ROUTER
        )

    @property
    def blocks(self) -> bool:
        """A retry gives way once it is used up; every other action settles its event."""
        return not set(self.then) <= {"retry"}

    def leaves_nothing_to(self, later: "CaseRule") -> bool:
        """Whether it matches whenever the later rule does, as far as the text says."""
        everywhere = not self.events or (
            bool(later.events) and _moments(later.events) <= _moments(self.events)
        )
        return self.blocks and everywhere and self.in_place in (guards.TRUE, later.in_place)


def _moments(events: frozenset[str]) -> set[str]:
    return {"well" if event in ("done", "exit", "item") else event for event in events}


def rewrite(step: Node, document: Node, editor: Editor) -> None:
    if "case" not in step:
        return
    given = step["case"]
    listed = given if isinstance(given, list) else [given]
    editor.note(step, "case", "`case` is now arcs, `set`, tasks and policies")
    inclusive = _takes_all(step, editor)
    rules = [rule for item in listed if (rule := _read(item, step, editor)) is not None]
    if not inclusive:
        _warn_of_dead_rules(rules, editor)
    del step["case"]
    own = _own_tasks(step, rules, editor)
    written = [len(retries.rules_of(task)) for task in own]
    routed: list[tuple[str, list[Node]]] = []
    for index, rule in enumerate(rules):
        earlier = (
            []
            if inclusive
            else [other for other in rules[:index] if other.meets(rule) and other.blocks]
        )
        if rule.works:
            _pipeline(step, rule, earlier, own, index, editor)
    for task, before in zip(own, written, strict=True):
        _retries_give_way(retries.rules_of(task), before, editor)
    # an error is routed when it happens, before the loop it happened in is done
    for index, rule in sorted(enumerate(rules), key=lambda numbered: numbered[1].after_loop):
        earlier = (
            []
            if inclusive
            else [other for other in rules[:index] if other.meets(rule) and other.blocks]
        )
        arc_guard, targets = _routing(step, document, rule, earlier, editor)
        if targets:
            routed.append((arc_guard, targets))
    _route(step, routed, inclusive, editor)


def _warn_of_dead_rules(rules: list[CaseRule], editor: Editor) -> None:
    for index, rule in enumerate(rules):
        winner = next((other for other in rules[:index] if other.leaves_nothing_to(rule)), None)
        if winner is None:
            continue
        line = editor.mark(winner.node, _place(winner)).line
        message = f"this case rule never acts: the rule in line {line} always matches first, and the first match acts"
        hint = "join their actions in one `then`, or write `case_mode: inclusive` to let every matching rule act"
        editor.report(rule.node, _place(rule), Code.UNREACHABLE_ARC, message, hint, "warning")


def _place(rule: CaseRule) -> str:
    return "when" if "when" in rule.node else "then"


def _retries_give_way(listed: Nodes, written: int, editor: Editor) -> None:
    """What `case` asks for after an error is done when no try is left: a retry before it must not decide then."""
    for index, rule in enumerate(listed):
        then = rule.get("then") if isinstance(rule, dict) else None
        retries_only = (
            isinstance(then, dict) and then.get("do") == "retry" and "exhausted" not in then
        )
        later = maps(listed[max(index + 1, written) :])
        if retries_only and any(other["then"]["do"] != "retry" for other in later):
            retries.while_a_try_is_left(rule, editor)


def _takes_all(step: Node, editor: Editor) -> bool:
    mode = step.get("case_mode", "exclusive")
    if mode not in ("exclusive", "inclusive", "all"):
        message = f"`case_mode` must be exclusive or inclusive, not {mode!r}"
        editor.fault(step, "case_mode", Code.BAD_VALUE, message)
    step.pop("case_mode", None)
    return mode in ("inclusive", "all")


def _own_tasks(step: Node, rules: list[CaseRule], editor: Editor) -> Nodes:
    """The tasks the step had before its rules add any; a noop when a rule needs one to stand behind."""
    if not any(rule.works for rule in rules):
        return []
    listed = tasks(step, editor)
    if not listed:
        editor.append(listed, _noop(step, editor), step, "step")
    return maps(listed)


def _read(item: Any, step: Node, editor: Editor) -> CaseRule | None:
    if not isinstance(item, dict):
        editor.fault(
            step, "case", Code.BAD_TYPE, "a case rule is a mapping", "{when: …, then: {next: …}}"
        )
        return None
    if "else" in item and "when" not in item:
        editor.rename(item, "else", "then")
        inner = item["then"]
        if isinstance(inner, dict) and set(inner) == {"then"}:
            item["then"] = inner["then"]
    for key in [key for key in item if key not in ("when", "then", "name", "desc")]:
        editor.fault(
            item,
            key,
            Code.UNKNOWN_KEY,
            f"unknown key `{key}` in a case rule",
            "a rule has `when` and `then`",
        )
    expression = guards.expression(item.get("when"))
    if expression is None:
        editor.fault(
            item, "when", Code.BAD_GUARD, "`when` must be one expression", 'write "{{ … }}"'
        )
        return None
    then = _actions(item, editor)
    return CaseRule(item, then, expression, guards.events(expression)) if then is not None else None


def _actions(item: Node, editor: Editor) -> Node | None:
    """`then` as one mapping of actions, whether it was a mapping, a list of actions or a list of tasks."""
    then = item.get("then")
    parts = then if isinstance(then, list) else [then]
    actions = editor.map(item, "then" if "then" in item else None)
    for part in parts:
        if isinstance(part, str):
            editor.put(actions, "next", part, item, "then")
        elif not isinstance(part, dict):
            editor.fault(
                item,
                "then",
                Code.BAD_TYPE,
                "`then` is a mapping or a list of actions",
                ", ".join(_ACTIONS),
            )
            return None
        elif "kind" in part or "tool" in part or _labelled(part):
            _add_task(actions, part, item, editor)
        else:
            _add_actions(actions, part, editor)
    if isinstance(actions.get("vars"), dict):
        tools.assignments(actions, editor)
    for key in actions:
        if not _SHAPES[key](actions[key]):
            editor.fault(
                actions,
                key,
                Code.BAD_TYPE,
                f"`{key}` in `then` has the wrong type",
                _SHAPE_HINTS[key],
            )
            return None
    return actions


def _mappings(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and len(maps(value)) == len(value)
    )


_SHAPES: dict[str, Callable[[Any], bool]] = {
    "next": lambda value: isinstance(value, str | dict | list),
    "set": lambda value: isinstance(value, dict),
    "vars": lambda value: False,
    "sink": _mappings,
    "retry": lambda value: isinstance(value, dict) or type(value) is int,
    "fail": lambda value: (
        isinstance(value, str) or (isinstance(value, dict) and set(value) <= {"message"})
    ),
    "tasks": _mappings,
}
_SHAPE_HINTS = {
    "next": "next: a step, or a list of arcs",
    "set": "set: {ctx.x: …}",
    "vars": "vars: {x: …}",
    "sink": "sink: {tool: {kind, table}, data}",
    "retry": "retry: {max_attempts: 3}",
    "fail": "fail: a message",
    "tasks": "tasks: [{name, kind, …}]",
}


def _labelled(part: Node) -> bool:
    return (
        len(part) == 1
        and next(iter(part)) not in _ACTIONS
        and isinstance(next(iter(part.values())), dict)
    )


def _add_task(actions: Node, part: Node, item: Node, editor: Editor) -> None:
    given = actions.get("tasks")
    if not isinstance(given, list):
        listed = editor.seq(item, "then")
        if given is not None:
            editor.append(listed, given, item, "then")
        editor.put(actions, "tasks", listed, item, "then")
    editor.append(actions["tasks"], part, item, "then")


def _add_actions(actions: Node, part: Node, editor: Editor) -> None:
    for key in list(part):
        if key == "step":
            editor.put(actions, "next", part, part, key)
            return
        if key not in _ACTIONS:
            editor.fault(
                part,
                key,
                Code.UNKNOWN_KEY,
                f"unknown action `{key}` in `then`",
                f"known: {', '.join(_ACTIONS)}",
            )
        elif key in actions:
            editor.fault(
                part,
                key,
                Code.DUPLICATE_KEY,
                f"`{key}` stands twice in one `then`",
                "keep one of them",
            )
        else:
            editor.move(part, key, actions)


# ---- in the pipeline ----


def _against(other: CaseRule, rule: CaseRule) -> str:
    """The other rule's guard where this one is tried: a rule that names no event may be tried after an error too."""
    return other.in_place if rule.events else other.at_router


def _pipeline(
    step: Node, rule: CaseRule, earlier: list[CaseRule], own: Nodes, index: int, editor: Editor
) -> None:
    """What the rule asks of the worker: retry, fail, sinks and tasks."""
    then, listed = rule.then, tasks(step, editor)
    meant = guards.all_of(
        rule.in_place, guards.none_of(*(_against(other, rule) for other in earlier))
    )
    if isinstance(then.get("retry"), int):
        action = editor.map(then, "retry")
        editor.put(action, "max_attempts", then["retry"], then, "retry")
        editor.put(then, "retry", action, then, "retry")
    if isinstance(then.get("retry"), dict):
        _retry(rule, meant, own, editor)
    if rule.on_error:
        _after_failure(rule, meant, own, listed, index, editor)
    else:
        _after_success(rule, meant, own, listed, index, editor)


def _only_set(then: Node) -> bool:
    return "set" in then and "next" not in then


def _noop(step: Node, editor: Editor) -> Node:
    task = editor.map(step, "step")
    editor.put(task, "name", "task_0", step, "step")
    editor.put(task, "kind", "noop", step, "step")
    return task


def _retry(rule: CaseRule, meant: str, own: Nodes, editor: Editor) -> None:
    retry = rule.then["retry"]
    if not rule.on_error and (rule.events or retries.concerns_answer(retry, meant)):
        retries.paginate(retry, meant, own, editor)
    else:
        retries.again_after_error(retry, meant, own, editor)


def _after_success(
    rule: CaseRule, meant: str, own: Nodes, listed: Nodes, index: int, editor: Editor
) -> None:
    then = rule.then
    if "tasks" in then and meant != guards.TRUE and own:
        meant = _settled(rule, meant, own, index, editor)
    added = _storage(then, listed, editor)
    for task in added:
        _only_when(task, meant, rule, editor)
    if "fail" in then and added:
        retries.add_rule(added[-1:], guards.TRUE, "fail", _failure(then, editor), editor)
    elif "fail" in then:
        retries.add_rule(own[-1:], meant, "fail", _failure(then, editor), editor)


def _settled(rule: CaseRule, meant: str, own: Nodes, index: int, editor: Editor) -> str:
    """The verdict, kept while `response` is still the answer it is about: added tasks have answers of their own."""
    flag = f"iter.case_{index}"
    given = editor.below(own[-1], "set", origin="kind")
    editor.put(
        given, flag, guards.guard(meant), rule.node, "when" if "when" in rule.node else "then"
    )
    return flag


def _after_failure(
    rule: CaseRule, meant: str, own: Nodes, listed: Nodes, index: int, editor: Editor
) -> None:
    then, failed = rule.then, guards.all_of(guards.FAILED, meant)
    if "fail" in then:
        retries.add_rule(own, failed, "fail", _failure(then, editor), editor)
    elif _only_set(then):
        action = editor.map(then, "set")
        editor.put(action, "set", then["set"], then, "set")
        retries.add_rule(own, failed, "fail", action, editor)
    handlers = _storage(then, listed, editor)
    if not handlers:
        return
    flag = f"iter.case_{index}"
    jump, note = editor.map(then), editor.map(then)
    editor.put(jump, "to", handlers[0]["name"], then, next(iter(then)))
    editor.put(note, flag, "{{ error.message }}", then, next(iter(then)))
    editor.put(jump, "set", note, then, next(iter(then)))
    retries.add_rule(own, failed, "jump", jump, editor)
    for task in handlers:
        _only_when(task, f"{flag} is defined", rule, editor)
    still = editor.map(then)
    editor.put(still, "message", f"{{{{ {flag} }}}}", then, next(iter(then)))
    retries.add_rule(handlers[-1:], guards.TRUE, "fail", still, editor)


def _failure(then: Node, editor: Editor) -> Node:
    action = editor.map(then, "fail")
    given = then["fail"]
    message = given.get("message") if isinstance(given, dict) else given
    if isinstance(message, str):
        editor.put(action, "message", message, then, "fail")
    return action


def _storage(then: Node, listed: Nodes, editor: Editor) -> list[Node]:
    """The rule's tasks and sinks, appended to the pipeline."""
    added: list[Node] = []
    given = then.get("tasks")
    for item in maps(given if isinstance(given, list) else [given]):
        tools.rewrite(item, editor)
        task = unlabel(item, editor) or item
        tools.rewrite(task, editor)
        if "name" not in task:
            editor.put(task, "name", sinks.fresh_name(listed, "case_task"), then, "tasks")
        editor.append(listed, task, then, "tasks")
        added.append(task)
    given = then.get("sink")
    for sink in maps(given if isinstance(given, list) else [given]):
        added.append(sinks.append_task(listed, sink, then, "sink", editor))
    return added


def _only_when(task: Node, expression: str, rule: CaseRule, editor: Editor) -> None:
    if expression == guards.TRUE:
        return
    spec = editor.below(task, "spec", origin="kind")
    own = guards.expression(spec.get("when"))
    if own is None:
        editor.fault(
            spec, "when", Code.BAD_GUARD, "`when` must be one expression", 'write "{{ … }}"'
        )
    origin, key = (rule.node, "when") if "when" in rule.node else (task, "kind")
    editor.put(
        spec, "when", guards.guard(guards.all_of(own or guards.TRUE, expression)), origin, key
    )


# ---- at the router ----


def _routing(
    step: Node, document: Node, rule: CaseRule, earlier: list[CaseRule], editor: Editor
) -> tuple[str, list[Node]]:
    """The rule's arcs and the guard they share; `set` without arcs goes to the step."""
    then = rule.then
    quiet = [other for other in earlier if "next" not in other.then]
    excluded = [_against(other, rule) for other in quiet]
    meant = guards.all_of(rule.at_router, guards.none_of(*excluded))
    if rule.events == {"item"} and "next" in then:
        message = "one item of a loop cannot route; the step routes once, after loop.done"
        editor.fault(rule.node, "then", Code.OLD_FORM, message, "use `event.name == 'loop.done'`")
        return meant, []
    targets = routers.targets(then.get("next"), then, "next", editor) if "next" in then else []
    if rule.after_loop and {"fail", "sink", "tasks"} & then.keys():
        return meant, [_own_step(step, document, rule, targets, editor)]
    if isinstance(then.get("set"), dict):
        if targets:
            for arc in targets:
                _merge_set(arc, then, editor)
        elif not rule.on_error:
            unmatched = guards.none_of(*(other.in_place for other in earlier))
            _conditional_set(step, then, guards.all_of(rule.in_place, unmatched), editor)
    return meant, targets


def _merge_set(arc: Node, then: Node, editor: Editor) -> None:
    below = editor.below(arc, "set", origin="step")
    for name in then["set"]:
        if name not in below:
            editor.put(below, name, then["set"][name], then["set"], name)


def _conditional_set(step: Node, then: Node, expression: str, editor: Editor) -> None:
    below = editor.below(step, "set", origin="step")
    for name, value in then["set"].items():
        key = name if "." in name else f"ctx.{name}"
        before = below.pop(name, below.get(key))
        chosen = value if expression == guards.TRUE else _chosen(key, value, expression, before)
        editor.put(below, key, chosen, then["set"], name)


def _chosen(name: str, value: Any, expression: str, before: Any) -> str:
    """The new value when the rule matches, else what the step itself assigns, else what the name held."""
    otherwise = f"{name} | default(none)" if before is None else _operand(before)
    return f"{{{{ {_operand(value)} if {expression} else {otherwise} }}}}"


def _operand(value: Any) -> str:
    inner = guards.expression(value) if isinstance(value, str) and "{{" in value else None
    return f"({inner})" if inner else _literal(value)


def _literal(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return repr(value)


def _own_step(
    step: Node, document: Node, rule: CaseRule, targets: list[Node], editor: Editor
) -> Node:
    """After a loop a rule's tasks run once, in a step of their own between the loop and what follows."""
    taken = {item.get("step") for item in maps(document.get("workflow"))}
    stem = f"{step.get('step')}_done"
    name = next(
        text
        for text in [stem, *(f"{stem}_{index}" for index in range(len(taken) + 1))]
        if text not in taken
    )
    extra, listed = editor.map(rule.node, "then"), editor.seq(rule.node, "then")
    editor.put(extra, "step", name, rule.node, "then")
    if "fail" in rule.then:
        editor.append(listed, _noop(extra, editor), rule.node, "then")
        retries.add_rule(listed[:1], guards.TRUE, "fail", _failure(rule.then, editor), editor)
    _storage(rule.then, listed, editor)
    for task in maps(listed):
        if task.get("kind") == "sink" and "data" not in task:
            editor.put(task, "data", f"{{{{ {step.get('step')}.rows }}}}", task, "kind")
    editor.put(extra, "tool", listed, rule.node, "then")
    onward = editor.seq(rule.node, "then")
    for arc in targets or maps(_plain_targets(step)):
        editor.append(onward, arc if targets else _copied(arc, editor), rule.node, "then")
    if onward:
        editor.put(extra, "next", onward, rule.node, "then")
    editor.append(document["workflow"], extra, rule.node, "then")
    arc = editor.map(rule.node, "then")
    editor.put(arc, "step", name, rule.node, "then")
    if isinstance(rule.then.get("set"), dict):
        _merge_set(arc, rule.then, editor)
    return arc


def _plain_targets(step: Node) -> Nodes:
    router = step.get("next")
    if isinstance(router, dict) and "step" not in router:
        router = router.get("arcs")
    listed = router if isinstance(router, list) else [router]
    return [
        {"step": item} if isinstance(item, str) else item for item in listed if item is not None
    ]


def _copied(arc: Node, editor: Editor) -> Node:
    twin = editor.map(arc)
    for key in arc:
        editor.put(twin, key, arc[key], arc, key)
    return twin


def _route(
    step: Node, routed: list[tuple[str, list[Node]]], inclusive: bool, editor: Editor
) -> None:
    """The rules' arcs before the step's own ones, which stay the default."""
    if not routed:
        return
    listed = arcs(step, editor)
    router = step["next"]
    spec = router.get("spec")
    forks = isinstance(spec, dict) and spec.get("mode") in ("inclusive", "all")
    several = any(sum("when" not in arc for arc in targets) > 1 for _, targets in routed)
    if inclusive or forks or several:
        _route_inclusively(step, routed, inclusive, forks, editor)
        return
    at = 0
    for expression, targets in routed:
        for arc in targets:
            _guard_arc(arc, expression, step, editor)
            editor.insert(listed, at, arc, arc, "step")
            at += 1


def _guard_arc(arc: Node, expression: str, step: Node, editor: Editor) -> None:
    own = guards.expression(arc.get("when"))
    if own is None:
        editor.fault(
            arc, "when", Code.BAD_GUARD, "`when` must be one expression", 'write "{{ … }}"'
        )
        return
    meant = guards.all_of(expression, own)
    if meant in (guards.TRUE, guards.WELL):
        arc.pop("when", None)  # an arc without a guard is tried after success only
    else:
        editor.put(arc, "when", guards.guard(meant), arc, "when" if "when" in arc else "step")


def _route_inclusively(
    step: Node, routed: list[tuple[str, list[Node]]], inclusive: bool, forks: bool, editor: Editor
) -> None:
    """Several arcs may be taken, so every guard says itself which others it excludes."""
    listed = arcs(step, editor)
    own = list(listed)
    at = 0
    seen: list[str] = []
    for expression, targets in routed:
        exclusive = expression if inclusive else guards.all_of(expression, guards.none_of(*seen))
        seen.append(expression)
        for arc in targets:
            _guard_arc(arc, exclusive, step, editor)
            editor.insert(listed, at, arc, arc, "step")
            at += 1
    before = list(seen)
    for arc in maps(own):
        expression = guards.expression(arc.get("when")) or guards.TRUE
        outcome = guards.WELL if "when" not in arc else guards.TRUE
        _guard_arc(arc, guards.all_of(outcome, guards.none_of(*before)), step, editor)
        if not forks:
            before.append(expression)
    editor.put(editor.below(step["next"], "spec", origin="arcs"), "mode", "inclusive", step, "next")
