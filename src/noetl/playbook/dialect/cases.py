"""`case`: rules on events, rewritten to arcs, assignments, storage tasks and policies.

A rule fires at one of three places. *In the pipeline* (call.done, step.exit, loop.item): its tasks
and sinks join the end of the pipeline under a guard, its retry and fail become policy. *On an
error* (call.error): policy rules, and tasks that only a jump reaches. *At the router* (every event
that ends the step): arcs and `set`; after a loop, tasks get a step of their own. The first matching
rule of an event wins, so a guard also says that no earlier rule of its event matched.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from noetl.playbook.dialect import guards, retries, routers, sinks
from noetl.playbook.dialect import tasks as tools
from noetl.playbook.dialect.editor import Editor, Node, Nodes, as_list, get_member, maps
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
        """Whether one event can concern both rules."""
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
        """Whether the worker has something to do for the rule."""
        if self.after_loop:
            return False
        if {"retry", "fail", "sink", "tasks"} & self.then.keys():
            return True
        return self.on_error and _only_set(self.then)

    @property
    def in_place(self) -> str:
        return guards.without_events(self.expression, _IN_PLACE)

    @property
    def at_router(self) -> str:
        meaning = _AT_ROUTER
        if self.events == {"exit"} and "error" in self.expression:
            meaning = {**_AT_ROUTER, "exit": guards.TRUE}
        return guards.without_events(self.expression, meaning)

    @property
    def blocks(self) -> bool:
        """Whether no later rule acts on its event. Only a retry lets later rules act, once it is
        used up.
        """
        return not set(self.then) <= {"retry"}

    def leaves_nothing_to(self, later: "CaseRule") -> bool:
        """Whether it matches whenever the later rule does, as far as the text says."""
        if not self.blocks:
            return False
        if self.events:
            if not later.events:
                return False
            if not _moments(later.events) <= _moments(self.events):
                return False
        return self.in_place in (guards.TRUE, later.in_place)


def _moments(events: frozenset[str]) -> set[str]:
    return {"well" if event in ("done", "exit", "item") else event for event in events}


def rewrite(step: Node, document: Node, editor: Editor) -> None:
    if "case" not in step:
        return
    items = as_list(step["case"])
    editor.note(step, "case", "`case` is now arcs, `set`, tasks and policies")
    inclusive = _takes_all(step, editor)
    read_rules = [_read(item, step, editor) for item in items]
    rules = [rule for rule in read_rules if rule is not None]
    if not inclusive:
        _warn_of_dead_rules(rules, editor)
    del step["case"]
    own = _own_tasks(step, rules, editor)
    written = [len(retries.rules_of(task)) for task in own]
    for index, rule in enumerate(rules):
        if rule.works:
            earlier = _earlier_rules(rules, index, inclusive)
            _pipeline(step, rule, earlier, own, index, editor)
    for task, before in zip(own, written, strict=True):
        _retries_give_way(retries.rules_of(task), before, editor)
    routed: list[tuple[str, list[Node]]] = []
    # an error is routed when it happens, before the loop it happened in is done
    for index, rule in sorted(enumerate(rules), key=lambda numbered: numbered[1].after_loop):
        earlier = _earlier_rules(rules, index, inclusive)
        arc_guard, targets = _routing(step, document, rule, earlier, editor)
        if targets:
            routed.append((arc_guard, targets))
    _route(step, routed, inclusive, editor)


def _earlier_rules(rules: list[CaseRule], index: int, inclusive: bool) -> list[CaseRule]:
    """The earlier rules that keep the rule from acting when they match."""
    if inclusive:
        return []
    rule = rules[index]
    return [other for other in rules[:index] if other.meets(rule) and other.blocks]


def _warn_of_dead_rules(rules: list[CaseRule], editor: Editor) -> None:
    for index, rule in enumerate(rules):
        winners = [other for other in rules[:index] if other.leaves_nothing_to(rule)]
        if not winners:
            continue
        line = editor.mark(winners[0].node, _place(winners[0])).line
        message = f"this case rule never acts: the rule in line {line} always matches first, and the first match acts"
        hint = "join their actions in one `then`, or write `case_mode: inclusive` to let every matching rule act"
        editor.report(rule.node, _place(rule), Code.UNREACHABLE_ARC, message, hint, "warning")


def _place(rule: CaseRule) -> str:
    return "when" if "when" in rule.node else "then"


def _retries_give_way(listed: Nodes, written: int, editor: Editor) -> None:
    """Guard retries that stand before other rules, so that those act when no attempt is left.

    `written` is the number of rules that the task had before `case` added its own.
    """
    for index, rule in enumerate(listed):
        then = get_member(rule, "then")
        if get_member(then, "do") != "retry" or "exhausted" in then:
            continue
        later = maps(listed[max(index + 1, written) :])
        if any(other["then"]["do"] != "retry" for other in later):
            retries.while_a_try_is_left(rule, editor)


def _takes_all(step: Node, editor: Editor) -> bool:
    mode = step.get("case_mode", "exclusive")
    if mode not in ("exclusive", "inclusive", "all"):
        message = f"`case_mode` must be exclusive or inclusive, not {mode!r}"
        editor.fault(step, "case_mode", Code.BAD_VALUE, message)
    step.pop("case_mode", None)
    return mode in ("inclusive", "all")


def _own_tasks(step: Node, rules: list[CaseRule], editor: Editor) -> Nodes:
    """The tasks of the step before its rules add any. If a rule needs a task and there is none, a
    noop is added.
    """
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
    if then is None:
        return None
    return CaseRule(item, then, expression, guards.events(expression))


def _actions(item: Node, editor: Editor) -> Node | None:
    """`then` as one mapping of actions. It may be written as a mapping, a list of actions or a list
    of tasks.
    """
    actions = editor.map(item, "then" if "then" in item else None)
    for part in as_list(item.get("then")):
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
    if isinstance(value, list) and value:
        return len(maps(value)) == len(value)
    return isinstance(value, dict)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and set(value) <= {"message"}


_SHAPES: dict[str, Callable[[Any], bool]] = {
    "next": lambda value: isinstance(value, str | dict | list),
    "set": lambda value: isinstance(value, dict),
    "vars": lambda value: False,
    "sink": _mappings,
    "retry": lambda value: isinstance(value, dict) or type(value) is int,
    "fail": lambda value: isinstance(value, str) or _is_message(value),
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
    if len(part) != 1:
        return False
    ((label, body),) = part.items()
    return label not in _ACTIONS and isinstance(body, dict)


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
    """The other rule's guard at the place where this rule is tried.

    A rule that names no event may be tried after an error too.
    """
    if rule.events:
        return other.in_place
    return other.at_router


def _pipeline(
    step: Node, rule: CaseRule, earlier: list[CaseRule], own: Nodes, index: int, editor: Editor
) -> None:
    """Add what the worker does for the rule: retry, fail, sinks and tasks."""
    then, listed = rule.then, tasks(step, editor)
    unmatched = guards.none_of(*(_against(other, rule) for other in earlier))
    condition = guards.all_of(rule.in_place, unmatched)
    if isinstance(then.get("retry"), int):
        action = editor.map(then, "retry")
        editor.put(action, "max_attempts", then["retry"], then, "retry")
        editor.put(then, "retry", action, then, "retry")
    if isinstance(then.get("retry"), dict):
        _retry(rule, condition, own, editor)
    if rule.on_error:
        _after_failure(rule, condition, own, listed, index, editor)
    else:
        _after_success(rule, condition, own, listed, index, editor)


def _only_set(then: Node) -> bool:
    return "set" in then and "next" not in then


def _noop(step: Node, editor: Editor) -> Node:
    task = editor.map(step, "step")
    editor.put(task, "name", "task_0", step, "step")
    editor.put(task, "kind", "noop", step, "step")
    return task


def _retry(rule: CaseRule, condition: str, own: Nodes, editor: Editor) -> None:
    retry = rule.then["retry"]
    if not rule.on_error and (rule.events or retries.concerns_answer(retry, condition)):
        retries.paginate(retry, condition, own, editor)
    else:
        retries.again_after_error(retry, condition, own, editor)


def _after_success(
    rule: CaseRule, condition: str, own: Nodes, listed: Nodes, index: int, editor: Editor
) -> None:
    then = rule.then
    if "tasks" in then and condition != guards.TRUE and own:
        condition = _settled(rule, condition, own, index, editor)
    added = _storage(then, listed, editor)
    for task in added:
        _only_when(task, condition, rule, editor)
    if "fail" in then and added:
        retries.add_rule(added[-1:], guards.TRUE, "fail", _failure(then, editor), editor)
    elif "fail" in then:
        retries.add_rule(own[-1:], condition, "fail", _failure(then, editor), editor)


def _settled(rule: CaseRule, condition: str, own: Nodes, index: int, editor: Editor) -> str:
    """Store the condition in a flag while `response` is still the answer it is about.

    The added tasks have answers of their own.
    """
    flag = f"iter.case_{index}"
    assignments = editor.below(own[-1], "set", origin="kind")
    editor.put(assignments, flag, guards.guard(condition), rule.node, _place(rule))
    return flag


def _after_failure(
    rule: CaseRule, condition: str, own: Nodes, listed: Nodes, index: int, editor: Editor
) -> None:
    then = rule.then
    failed = guards.all_of(guards.FAILED, condition)
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
    origin = next(iter(then))
    jump, assignments = editor.map(then), editor.map(then)
    editor.put(jump, "to", handlers[0]["name"], then, origin)
    editor.put(assignments, flag, "{{ error.message }}", then, origin)
    editor.put(jump, "set", assignments, then, origin)
    retries.add_rule(own, failed, "jump", jump, editor)
    for task in handlers:
        _only_when(task, f"{flag} is defined", rule, editor)
    failure = editor.map(then)
    editor.put(failure, "message", f"{{{{ {flag} }}}}", then, origin)
    retries.add_rule(handlers[-1:], guards.TRUE, "fail", failure, editor)


def _failure(then: Node, editor: Editor) -> Node:
    action = editor.map(then, "fail")
    message = then["fail"]
    if isinstance(message, dict):
        message = message.get("message")
    if isinstance(message, str):
        editor.put(action, "message", message, then, "fail")
    return action


def _storage(then: Node, listed: Nodes, editor: Editor) -> list[Node]:
    """Append the rule's tasks and sinks to the pipeline, and return them."""
    added: list[Node] = []
    for item in maps(as_list(then.get("tasks"))):
        tools.rewrite(item, editor)
        task = unlabel(item, editor) or item
        tools.rewrite(task, editor)
        if "name" not in task:
            editor.put(task, "name", sinks.fresh_name(listed, "case_task"), then, "tasks")
        editor.append(listed, task, then, "tasks")
        added.append(task)
    for sink in maps(as_list(then.get("sink"))):
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
        own = guards.TRUE
    guard = guards.guard(guards.all_of(own, expression))
    if "when" in rule.node:
        editor.put(spec, "when", guard, rule.node, "when")
    else:
        editor.put(spec, "when", guard, task, "kind")


# ---- at the router ----


def _routing(
    step: Node, document: Node, rule: CaseRule, earlier: list[CaseRule], editor: Editor
) -> tuple[str, list[Node]]:
    """The rule's arcs and the guard they share. A `set` without arcs goes to the step."""
    then = rule.then
    without_arcs = [other for other in earlier if "next" not in other.then]
    excluded = [_against(other, rule) for other in without_arcs]
    condition = guards.all_of(rule.at_router, guards.none_of(*excluded))
    if rule.events == {"item"} and "next" in then:
        message = "one item of a loop cannot route; the step routes once, after loop.done"
        editor.fault(rule.node, "then", Code.OLD_FORM, message, "use `event.name == 'loop.done'`")
        return condition, []
    targets: list[Node] = []
    if "next" in then:
        targets = routers.targets(then.get("next"), then, "next", editor)
    if rule.after_loop and {"fail", "sink", "tasks"} & then.keys():
        return condition, [_own_step(step, document, rule, targets, editor)]
    if isinstance(then.get("set"), dict):
        for arc in targets:
            _merge_set(arc, then, editor)
        if not targets and not rule.on_error:
            unmatched = guards.none_of(*(other.in_place for other in earlier))
            _conditional_set(step, then, guards.all_of(rule.in_place, unmatched), editor)
    return condition, targets


def _merge_set(arc: Node, then: Node, editor: Editor) -> None:
    below = editor.below(arc, "set", origin="step")
    for name in then["set"]:
        if name not in below:
            editor.put(below, name, then["set"][name], then["set"], name)


def _conditional_set(step: Node, then: Node, expression: str, editor: Editor) -> None:
    assignments = editor.below(step, "set", origin="step")
    for name, value in then["set"].items():
        key = name if "." in name else f"ctx.{name}"
        before = assignments.pop(name, assignments.get(key))
        if expression != guards.TRUE:
            value = _chosen(key, value, expression, before)
        editor.put(assignments, key, value, then["set"], name)


def _chosen(name: str, value: Any, expression: str, before: Any) -> str:
    """The new value if the rule matches, else the value that the step assigns, else the value the
    name has.
    """
    otherwise = f"{name} | default(none)" if before is None else _operand(before)
    return f"{{{{ {_operand(value)} if {expression} else {otherwise} }}}}"


def _operand(value: Any) -> str:
    if isinstance(value, str) and "{{" in value:
        inner = guards.expression(value)
        if inner:
            return f"({inner})"
    return _literal(value)


def _literal(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, dict):
        members = [f"{key!r}: {_literal(item)}" for key, item in value.items()]
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        items = [_literal(item) for item in value]
        return "[" + ", ".join(items) + "]"
    return repr(value)


def _own_step(
    step: Node, document: Node, rule: CaseRule, targets: list[Node], editor: Editor
) -> Node:
    """Add a step for the rule's tasks, which run once after a loop; return the arc that leads to it.

    The new step goes on to the targets of the rule, or to those of the loop if the rule has none.
    """
    name = _own_step_name(step, document)
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
    for arc in targets or [_copied(arc, editor) for arc in maps(_plain_targets(step))]:
        editor.append(onward, arc, rule.node, "then")
    if onward:
        editor.put(extra, "next", onward, rule.node, "then")
    editor.append(document["workflow"], extra, rule.node, "then")
    arc = editor.map(rule.node, "then")
    editor.put(arc, "step", name, rule.node, "then")
    if isinstance(rule.then.get("set"), dict):
        _merge_set(arc, rule.then, editor)
    return arc


def _own_step_name(step: Node, document: Node) -> str:
    used_names = {item.get("step") for item in maps(document.get("workflow"))}
    stem = f"{step.get('step')}_done"
    numbered = [f"{stem}_{index}" for index in range(len(used_names) + 1)]
    return next(name for name in [stem, *numbered] if name not in used_names)


def _plain_targets(step: Node) -> Nodes:
    router = step.get("next")
    if isinstance(router, dict) and "step" not in router:
        router = router.get("arcs")
    targets: Nodes = []
    for item in as_list(router):
        if isinstance(item, str):
            targets.append({"step": item})
        elif item is not None:
            targets.append(item)
    return targets


def _copied(arc: Node, editor: Editor) -> Node:
    copied = editor.map(arc)
    for key in arc:
        editor.put(copied, key, arc[key], arc, key)
    return copied


def _route(
    step: Node, routed: list[tuple[str, list[Node]]], inclusive: bool, editor: Editor
) -> None:
    """Insert the rules' arcs before the step's own arcs, which stay the default."""
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
    condition = guards.all_of(expression, own)
    if condition in (guards.TRUE, guards.WELL):
        arc.pop("when", None)  # an arc without a guard is tried after success only
    else:
        origin = "when" if "when" in arc else "step"
        editor.put(arc, "when", guards.guard(condition), arc, origin)


def _route_inclusively(
    step: Node, routed: list[tuple[str, list[Node]]], inclusive: bool, forks: bool, editor: Editor
) -> None:
    """Several arcs may be taken, so every guard says which other guards it excludes."""
    listed = arcs(step, editor)
    own = list(listed)
    at = 0
    seen: list[str] = []
    for expression, targets in routed:
        condition = expression
        if not inclusive:
            condition = guards.all_of(expression, guards.none_of(*seen))
        seen.append(expression)
        for arc in targets:
            _guard_arc(arc, condition, step, editor)
            editor.insert(listed, at, arc, arc, "step")
            at += 1
    for arc in maps(own):
        expression = guards.expression(arc.get("when")) or guards.TRUE
        outcome = guards.WELL if "when" not in arc else guards.TRUE
        _guard_arc(arc, guards.all_of(outcome, guards.none_of(*seen)), step, editor)
        if not forks:
            seen.append(expression)
    spec = editor.below(step["next"], "spec", origin="arcs")
    editor.put(spec, "mode", "inclusive", step, "next")
