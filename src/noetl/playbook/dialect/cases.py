"""`case`: rules on events, rewritten to arcs, assignments, storage tasks and policies.

A rule fires at one of three places. *In the pipeline* (call.done, step.exit, loop.item): its tasks
and sinks join the end of the pipeline under a guard, its retry and fail become policy. *On an
error* (call.error): policy rules, and tasks that only a jump reaches. *At the router* (every event
that ends the step): arcs and `set`; after a loop, tasks get a step of their own. The first matching
rule of an event wins, so a guard also says that no earlier rule of its event matched.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from noetl.playbook.dialect import guards, retries, routers, sinks
from noetl.playbook.dialect import tasks as tools
from noetl.playbook.dialect.editor import Editor, Node, Nodes, as_list, get_member, list_maps
from noetl.playbook.dialect.shorthand import expand_arcs, expand_tasks, unlabel_task
from noetl.playbook.findings import Code

_ACTIONS = ("next", "set", "vars", "sink", "retry", "fail", "tasks")
_PIPELINE_MEANING = dict.fromkeys(guards.EVENTS.values(), guards.TRUE_GUARD)
_ROUTER_MEANING = {
    **_PIPELINE_MEANING,
    "error": guards.FAILED_GUARD,
    "done": guards.SUCCEEDED_GUARD,
    "exit": guards.SUCCEEDED_GUARD,
    "loop": "event.name == 'loop.done'",
}


class CaseRule(Struct, frozen=True):
    node: Node
    then: Node
    expression: str
    events: frozenset[str]

    def shares_event_with(self, other: "CaseRule") -> bool:
        """Whether one event can concern both rules."""
        if not self.events or not other.events:
            return True
        return bool(_find_moments(self.events) & _find_moments(other.events))

    @property
    def is_on_error(self) -> bool:
        return self.events == {"error"}

    @property
    def is_after_loop(self) -> bool:
        return self.events == {"loop"}

    @property
    def has_work(self) -> bool:
        """Whether the worker has something to do for the rule."""
        if self.is_after_loop:
            return False
        if {"retry", "fail", "sink", "tasks"} & self.then.keys():
            return True
        return self.is_on_error and _only_assigns(self.then)

    @property
    def pipeline_guard(self) -> str:
        return guards.replace_events(self.expression, _PIPELINE_MEANING)

    @property
    def router_guard(self) -> str:
        meaning = _ROUTER_MEANING
        if self.events == {"exit"} and "error" in self.expression:
            meaning = {**_ROUTER_MEANING, "exit": guards.TRUE_GUARD}
        return guards.replace_events(self.expression, meaning)

    @property
    def settles_event(self) -> bool:
        """Whether no later rule acts on its event. Only a retry lets later rules act, once it is
        used up.
        """
        return not set(self.then) <= {"retry"}

    def leaves_nothing_to(self, later: "CaseRule") -> bool:
        """Whether it matches whenever the later rule does, as far as the text says."""
        if not self.settles_event:
            return False
        if self.events:
            if not later.events:
                return False
            if not _find_moments(later.events) <= _find_moments(self.events):
                return False
        return self.pipeline_guard in (guards.TRUE_GUARD, later.pipeline_guard)


def _find_moments(events: frozenset[str]) -> set[str]:
    return {"well" if event in ("done", "exit", "item") else event for event in events}


def rewrite(step: Node, document: Node, editor: Editor) -> None:
    if "case" not in step:
        return
    items = as_list(step["case"])
    editor.add_note(step, "case", "`case` is now arcs, `set`, tasks and policies")
    inclusive = _is_inclusive(step, editor)
    read_rules = [_read_rule(item, step, editor) for item in items]
    rules = [rule for rule in read_rules if rule is not None]
    if not inclusive:
        _warn_of_dead_rules(rules, editor)
    del step["case"]
    own = _list_own_tasks(step, rules, editor)
    written = [len(retries.list_policy_rules(task)) for task in own]
    for index, rule in enumerate(rules):
        if rule.has_work:
            earlier = _find_earlier_rules(rules, index, inclusive)
            _add_to_pipeline(step, rule, earlier, own, index, editor)
    for task, before in zip(own, written, strict=True):
        _limit_retries(retries.list_policy_rules(task), before, editor)
    routed: list[tuple[str, list[Node]]] = []
    # an error is routed when it happens, before the loop it happened in is done
    for index, rule in sorted(enumerate(rules), key=lambda numbered: numbered[1].is_after_loop):
        earlier = _find_earlier_rules(rules, index, inclusive)
        arc_guard, targets = _make_routing(step, document, rule, earlier, editor)
        if targets:
            routed.append((arc_guard, targets))
    _insert_arcs(step, routed, inclusive, editor)


def _find_earlier_rules(
    rules: list[CaseRule],
    index: int,
    inclusive: bool,
) -> list[CaseRule]:
    """The earlier rules that keep the rule from acting when they match."""
    if inclusive:
        return []
    rule = rules[index]
    return [
        other for other in rules[:index] if other.shares_event_with(rule) and other.settles_event
    ]


def _warn_of_dead_rules(rules: list[CaseRule], editor: Editor) -> None:
    for index, rule in enumerate(rules):
        winners = [other for other in rules[:index] if other.leaves_nothing_to(rule)]
        if not winners:
            continue
        line = editor.get_mark(winners[0].node, _find_position_key(winners[0])).line
        message = f"this case rule never acts: the rule in line {line} always matches first, and the first match acts"
        hint = "join their actions in one `then`, or write `case_mode: inclusive` to let every matching rule act"
        editor.add_finding(
            rule.node, _find_position_key(rule), Code.UNREACHABLE_ARC, message, hint, "warning"
        )


def _find_position_key(rule: CaseRule) -> str:
    return "when" if "when" in rule.node else "then"


def _limit_retries(listed: Nodes, written: int, editor: Editor) -> None:
    """Guard retries that stand before other rules, so that those act when no attempt is left.

    `written` is the number of rules that the task had before `case` added its own.
    """
    for index, rule in enumerate(listed):
        then = get_member(rule, "then")
        if get_member(then, "do") != "retry" or "exhausted" in then:
            continue
        later = list_maps(listed[max(index + 1, written) :])
        if any(other["then"]["do"] != "retry" for other in later):
            retries.limit_retry(rule, editor)


def _is_inclusive(step: Node, editor: Editor) -> bool:
    mode = step.get("case_mode", "exclusive")
    if mode not in ("exclusive", "inclusive", "all"):
        message = f"`case_mode` must be exclusive or inclusive, not {mode!r}"
        editor.add_error(step, "case_mode", Code.BAD_VALUE, message)
    step.pop("case_mode", None)
    return mode in ("inclusive", "all")


def _list_own_tasks(step: Node, rules: list[CaseRule], editor: Editor) -> Nodes:
    """The tasks of the step before its rules add any. If a rule needs a task and there is none, a
    noop is added.
    """
    if not any(rule.has_work for rule in rules):
        return []
    listed = expand_tasks(step, editor)
    if not listed:
        editor.append(listed, _make_noop(step, editor), step, "step")
    return list_maps(listed)


def _read_rule(item: Any, step: Node, editor: Editor) -> CaseRule | None:
    if not isinstance(item, dict):
        editor.add_error(
            step, "case", Code.BAD_TYPE, "a case rule is a mapping", "{when: …, then: {next: …}}"
        )
        return None
    if "else" in item and "when" not in item:
        editor.rename(item, "else", "then")
        inner = item["then"]
        if isinstance(inner, dict) and set(inner) == {"then"}:
            item["then"] = inner["then"]
    for key in [key for key in item if key not in ("when", "then", "name", "desc")]:
        editor.add_error(
            item,
            key,
            Code.UNKNOWN_KEY,
            f"unknown key `{key}` in a case rule",
            "a rule has `when` and `then`",
        )
    expression = guards.parse_guard(item.get("when"))
    if expression is None:
        editor.add_error(
            item, "when", Code.BAD_GUARD, "`when` must be one expression", 'write "{{ … }}"'
        )
        return None
    then = _read_actions(item, editor)
    if then is None:
        return None
    return CaseRule(item, then, expression, guards.find_events(expression))


def _read_actions(item: Node, editor: Editor) -> Node | None:
    """`then` as one mapping of actions. It may be written as a mapping, a list of actions or a list
    of tasks.
    """
    actions = editor.make_map(item, "then" if "then" in item else None)
    for part in as_list(item.get("then")):
        if isinstance(part, str):
            editor.put(actions, "next", part, item, "then")
        elif not isinstance(part, dict):
            editor.add_error(
                item,
                "then",
                Code.BAD_TYPE,
                "`then` is a mapping or a list of actions",
                ", ".join(_ACTIONS),
            )
            return None
        elif "kind" in part or "tool" in part or _is_labelled(part):
            _add_task(actions, part, item, editor)
        else:
            _add_actions(actions, part, editor)
    if isinstance(actions.get("vars"), dict):
        tools.rewrite_assignments(actions, editor)
    for key in actions:
        if not _SHAPES[key](actions[key]):
            editor.add_error(
                actions,
                key,
                Code.BAD_TYPE,
                f"`{key}` in `then` has the wrong type",
                _SHAPE_HINTS[key],
            )
            return None
    return actions


def _are_mappings(value: Any) -> bool:
    if isinstance(value, list) and value:
        return len(list_maps(value)) == len(value)
    return isinstance(value, dict)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and set(value) <= {"message"}


_SHAPES: dict[str, Callable[[Any], bool]] = {
    "next": lambda value: isinstance(value, str | dict | list),
    "set": lambda value: isinstance(value, dict),
    "vars": lambda value: False,
    "sink": _are_mappings,
    "retry": lambda value: isinstance(value, dict) or type(value) is int,
    "fail": lambda value: isinstance(value, str) or _is_message(value),
    "tasks": _are_mappings,
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


def _is_labelled(part: Node) -> bool:
    if len(part) != 1:
        return False
    ((label, body),) = part.items()
    return label not in _ACTIONS and isinstance(body, dict)


def _add_task(actions: Node, part: Node, item: Node, editor: Editor) -> None:
    given = actions.get("tasks")
    if not isinstance(given, list):
        listed = editor.make_seq(item, "then")
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
            editor.add_error(
                part,
                key,
                Code.UNKNOWN_KEY,
                f"unknown action `{key}` in `then`",
                f"known: {', '.join(_ACTIONS)}",
            )
        elif key in actions:
            editor.add_error(
                part,
                key,
                Code.DUPLICATE_KEY,
                f"`{key}` stands twice in one `then`",
                "keep one of them",
            )
        else:
            editor.move(part, key, actions)


# ---- in the pipeline ----


def _guard_against(other: CaseRule, rule: CaseRule) -> str:
    """The other rule's guard at the place where this rule is tried.

    A rule that names no event may be tried after an error too.
    """
    if rule.events:
        return other.pipeline_guard
    return other.router_guard


def _add_to_pipeline(
    step: Node, rule: CaseRule, earlier: list[CaseRule], own: Nodes, index: int, editor: Editor
) -> None:
    """Add what the worker does for the rule: retry, fail, sinks and tasks."""
    then, listed = rule.then, expand_tasks(step, editor)
    unmatched = guards.exclude_all(*(_guard_against(other, rule) for other in earlier))
    condition = guards.join_all(rule.pipeline_guard, unmatched)
    if isinstance(then.get("retry"), int):
        action = editor.make_map(then, "retry")
        editor.put(action, "max_attempts", then["retry"], then, "retry")
        editor.put(then, "retry", action, then, "retry")
    if isinstance(then.get("retry"), dict):
        _add_retry(rule, condition, own, editor)
    if rule.is_on_error:
        _add_after_failure(rule, condition, own, listed, index, editor)
    else:
        _add_after_success(rule, condition, own, listed, index, editor)


def _only_assigns(then: Node) -> bool:
    return "set" in then and "next" not in then


def _make_noop(step: Node, editor: Editor) -> Node:
    task = editor.make_map(step, "step")
    editor.put(task, "name", "task_0", step, "step")
    editor.put(task, "kind", "noop", step, "step")
    return task


def _add_retry(rule: CaseRule, condition: str, own: Nodes, editor: Editor) -> None:
    retry = rule.then["retry"]
    if not rule.is_on_error and (rule.events or retries.concerns_answer(retry, condition)):
        retries.add_paginator(retry, condition, own, editor)
    else:
        retries.retry_after_error(retry, condition, own, editor)


def _add_after_success(
    rule: CaseRule, condition: str, own: Nodes, listed: Nodes, index: int, editor: Editor
) -> None:
    then = rule.then
    if "tasks" in then and condition != guards.TRUE_GUARD and own:
        condition = _store_verdict(rule, condition, own, index, editor)
    added = _append_tasks(then, listed, editor)
    for task in added:
        _guard_task(task, condition, rule, editor)
    if "fail" in then and added:
        retries.add_rule(added[-1:], guards.TRUE_GUARD, "fail", _make_failure(then, editor), editor)
    elif "fail" in then:
        retries.add_rule(own[-1:], condition, "fail", _make_failure(then, editor), editor)


def _store_verdict(
    rule: CaseRule,
    condition: str,
    own: Nodes,
    index: int,
    editor: Editor,
) -> str:
    """Store the condition in a flag while `response` is still the answer it is about.

    The added tasks have answers of their own.
    """
    flag = f"iter.case_{index}"
    assignments = editor.ensure_map(own[-1], "set", origin="kind")
    editor.put(assignments, flag, guards.make_guard(condition), rule.node, _find_position_key(rule))
    return flag


def _add_after_failure(
    rule: CaseRule, condition: str, own: Nodes, listed: Nodes, index: int, editor: Editor
) -> None:
    then = rule.then
    failed = guards.join_all(guards.FAILED_GUARD, condition)
    if "fail" in then:
        retries.add_rule(own, failed, "fail", _make_failure(then, editor), editor)
    elif _only_assigns(then):
        action = editor.make_map(then, "set")
        editor.put(action, "set", then["set"], then, "set")
        retries.add_rule(own, failed, "fail", action, editor)
    handlers = _append_tasks(then, listed, editor)
    if not handlers:
        return
    flag = f"iter.case_{index}"
    origin = next(iter(then))
    jump, assignments = editor.make_map(then), editor.make_map(then)
    editor.put(jump, "to", handlers[0]["name"], then, origin)
    editor.put(assignments, flag, "{{ error.message }}", then, origin)
    editor.put(jump, "set", assignments, then, origin)
    retries.add_rule(own, failed, "jump", jump, editor)
    for task in handlers:
        _guard_task(task, f"{flag} is defined", rule, editor)
    failure = editor.make_map(then)
    editor.put(failure, "message", f"{{{{ {flag} }}}}", then, origin)
    retries.add_rule(handlers[-1:], guards.TRUE_GUARD, "fail", failure, editor)


def _make_failure(then: Node, editor: Editor) -> Node:
    action = editor.make_map(then, "fail")
    message = then["fail"]
    if isinstance(message, dict):
        message = message.get("message")
    if isinstance(message, str):
        editor.put(action, "message", message, then, "fail")
    return action


def _append_tasks(then: Node, listed: Nodes, editor: Editor) -> list[Node]:
    """Append the rule's tasks and sinks to the pipeline, and return them."""
    added: list[Node] = []
    for item in list_maps(as_list(then.get("tasks"))):
        tools.rewrite(item, editor)
        task = unlabel_task(item, editor) or item
        tools.rewrite(task, editor)
        if "name" not in task:
            editor.put(task, "name", sinks.find_free_name(listed, "case_task"), then, "tasks")
        editor.append(listed, task, then, "tasks")
        added.append(task)
    for sink in list_maps(as_list(then.get("sink"))):
        added.append(sinks.append_task(listed, sink, then, "sink", editor))
    return added


def _guard_task(task: Node, expression: str, rule: CaseRule, editor: Editor) -> None:
    if expression == guards.TRUE_GUARD:
        return
    spec = editor.ensure_map(task, "spec", origin="kind")
    own = guards.parse_guard(spec.get("when"))
    if own is None:
        editor.add_error(
            spec, "when", Code.BAD_GUARD, "`when` must be one expression", 'write "{{ … }}"'
        )
        own = guards.TRUE_GUARD
    guard = guards.make_guard(guards.join_all(own, expression))
    if "when" in rule.node:
        editor.put(spec, "when", guard, rule.node, "when")
    else:
        editor.put(spec, "when", guard, task, "kind")


# ---- at the router ----


def _make_routing(
    step: Node, document: Node, rule: CaseRule, earlier: list[CaseRule], editor: Editor
) -> tuple[str, list[Node]]:
    """The rule's arcs and the guard they share. A `set` without arcs goes to the step."""
    then = rule.then
    without_arcs = [other for other in earlier if "next" not in other.then]
    excluded = [_guard_against(other, rule) for other in without_arcs]
    condition = guards.join_all(rule.router_guard, guards.exclude_all(*excluded))
    if rule.events == {"item"} and "next" in then:
        message = "one item of a loop cannot route; the step routes once, after loop.done"
        editor.add_error(
            rule.node, "then", Code.OLD_FORM, message, "use `event.name == 'loop.done'`"
        )
        return condition, []
    targets: list[Node] = []
    if "next" in then:
        targets = routers.list_branch_targets(then.get("next"), then, "next", editor)
    if rule.is_after_loop and {"fail", "sink", "tasks"} & then.keys():
        return condition, [_add_own_step(step, document, rule, targets, editor)]
    if isinstance(then.get("set"), dict):
        for arc in targets:
            _merge_set(arc, then, editor)
        if not targets and not rule.is_on_error:
            unmatched = guards.exclude_all(*(other.pipeline_guard for other in earlier))
            _add_conditional_set(
                step, then, guards.join_all(rule.pipeline_guard, unmatched), editor
            )
    return condition, targets


def _merge_set(arc: Node, then: Node, editor: Editor) -> None:
    below = editor.ensure_map(arc, "set", origin="step")
    for name in then["set"]:
        if name not in below:
            editor.put(below, name, then["set"][name], then["set"], name)


def _add_conditional_set(step: Node, then: Node, expression: str, editor: Editor) -> None:
    assignments = editor.ensure_map(step, "set", origin="step")
    for name, value in then["set"].items():
        key = name if "." in name else f"ctx.{name}"
        before = assignments.pop(name, assignments.get(key))
        if expression != guards.TRUE_GUARD:
            value = _choose_value(key, value, expression, before)
        editor.put(assignments, key, value, then["set"], name)


def _choose_value(name: str, value: Any, expression: str, before: Any) -> str:
    """The new value if the rule matches, else the value that the step assigns, else the value the
    name has.
    """
    otherwise = f"{name} | default(none)" if before is None else _to_operand(before)
    return f"{{{{ {_to_operand(value)} if {expression} else {otherwise} }}}}"


def _to_operand(value: Any) -> str:
    if isinstance(value, str) and "{{" in value:
        inner = guards.parse_guard(value)
        if inner:
            return f"({inner})"
    return _to_literal(value)


def _to_literal(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, dict):
        members = [f"{key!r}: {_to_literal(item)}" for key, item in value.items()]
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        items = [_to_literal(item) for item in value]
        return "[" + ", ".join(items) + "]"
    return repr(value)


def _add_own_step(
    step: Node, document: Node, rule: CaseRule, targets: list[Node], editor: Editor
) -> Node:
    """Add a step for the rule's tasks, which run once after a loop; return the arc that leads to it.

    The new step goes on to the targets of the rule, or to those of the loop if the rule has none.
    """
    name = _find_step_name(step, document)
    extra, listed = editor.make_map(rule.node, "then"), editor.make_seq(rule.node, "then")
    editor.put(extra, "step", name, rule.node, "then")
    if "fail" in rule.then:
        editor.append(listed, _make_noop(extra, editor), rule.node, "then")
        retries.add_rule(
            listed[:1], guards.TRUE_GUARD, "fail", _make_failure(rule.then, editor), editor
        )
    _append_tasks(rule.then, listed, editor)
    for task in list_maps(listed):
        if task.get("kind") == "sink" and "data" not in task:
            editor.put(task, "data", f"{{{{ {step.get('step')}.rows }}}}", task, "kind")
    editor.put(extra, "tool", listed, rule.node, "then")
    onward = editor.make_seq(rule.node, "then")
    for arc in targets or [_copy_arc(arc, editor) for arc in list_maps(_list_plain_targets(step))]:
        editor.append(onward, arc, rule.node, "then")
    if onward:
        editor.put(extra, "next", onward, rule.node, "then")
    editor.append(document["workflow"], extra, rule.node, "then")
    arc = editor.make_map(rule.node, "then")
    editor.put(arc, "step", name, rule.node, "then")
    if isinstance(rule.then.get("set"), dict):
        _merge_set(arc, rule.then, editor)
    return arc


def _find_step_name(step: Node, document: Node) -> str:
    used_names = {item.get("step") for item in list_maps(document.get("workflow"))}
    stem = f"{step.get('step')}_done"
    numbered = [f"{stem}_{index}" for index in range(len(used_names) + 1)]
    return next(name for name in [stem, *numbered] if name not in used_names)


def _list_plain_targets(step: Node) -> Nodes:
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


def _copy_arc(arc: Node, editor: Editor) -> Node:
    copied = editor.make_map(arc)
    for key in arc:
        editor.put(copied, key, arc[key], arc, key)
    return copied


def _insert_arcs(
    step: Node, routed: list[tuple[str, list[Node]]], inclusive: bool, editor: Editor
) -> None:
    """Insert the rules' arcs before the step's own arcs, which stay the default."""
    if not routed:
        return
    listed = expand_arcs(step, editor)
    router = step["next"]
    spec = router.get("spec")
    forks = isinstance(spec, dict) and spec.get("mode") in ("inclusive", "all")
    several = any(sum("when" not in arc for arc in targets) > 1 for _, targets in routed)
    if inclusive or forks or several:
        _insert_inclusive_arcs(step, routed, inclusive, forks, editor)
        return
    at = 0
    for expression, targets in routed:
        for arc in targets:
            _guard_arc(arc, expression, step, editor)
            editor.insert(listed, at, arc, arc, "step")
            at += 1


def _guard_arc(arc: Node, expression: str, step: Node, editor: Editor) -> None:
    own = guards.parse_guard(arc.get("when"))
    if own is None:
        editor.add_error(
            arc, "when", Code.BAD_GUARD, "`when` must be one expression", 'write "{{ … }}"'
        )
        return
    condition = guards.join_all(expression, own)
    if condition in (guards.TRUE_GUARD, guards.SUCCEEDED_GUARD):
        arc.pop("when", None)  # an arc without a guard is tried after success only
    else:
        origin = "when" if "when" in arc else "step"
        editor.put(arc, "when", guards.make_guard(condition), arc, origin)


def _insert_inclusive_arcs(
    step: Node, routed: list[tuple[str, list[Node]]], inclusive: bool, forks: bool, editor: Editor
) -> None:
    """Several arcs may be taken, so every guard says which other guards it excludes."""
    listed = expand_arcs(step, editor)
    own = list(listed)
    at = 0
    seen: list[str] = []
    for expression, targets in routed:
        condition = expression
        if not inclusive:
            condition = guards.join_all(expression, guards.exclude_all(*seen))
        seen.append(expression)
        for arc in targets:
            _guard_arc(arc, condition, step, editor)
            editor.insert(listed, at, arc, arc, "step")
            at += 1
    for arc in list_maps(own):
        expression = guards.parse_guard(arc.get("when")) or guards.TRUE_GUARD
        outcome = guards.SUCCEEDED_GUARD if "when" not in arc else guards.TRUE_GUARD
        _guard_arc(arc, guards.join_all(outcome, guards.exclude_all(*seen)), step, editor)
        if not forks:
            seen.append(expression)
    spec = editor.ensure_map(step["next"], "spec", origin="arcs")
    editor.put(spec, "mode", "inclusive", step, "next")
