"""The two older meanings of `retry`: repeat a call after an error, and repeat it after an answer
(pagination, polling).
"""

import copy
import re
from typing import Any

from noetl.playbook.dialect import guards, sinks
from noetl.playbook.dialect.editor import Editor, Node, Nodes, maps, policy_rules
from noetl.playbook.findings import Code
from noetl.playbook.model import DEFAULT_ATTEMPTS

_ACTION = {
    "max_attempts": "attempts",
    "initial_delay": "delay",
    "interval": "delay",
    "backoff_multiplier": "multiplier",
    "backoff_factor": "multiplier",
    "backoff_strategy": "backoff",
    "max_retries": "attempts",
}
_PAGE = {
    "attempts": "max_attempts",
    "max_pages": "max_attempts",
    "max_iterations": "max_attempts",
    "initial_delay": "delay",
    "interval": "delay",
    "while": "when",
}
_PAGING = ("next_call", "collect", "per_iteration")
_GUARDS = ("when", "retry_when", "while")
_OF_ANSWER = re.compile(r"\b(response|result)\b(?!\.status_code)|\boutput\.data\b")
_OF_ERROR = re.compile(r"\berror\b(?! is not defined)|\bcall\.error\b|\bstatus_code\b")


def rewrite(holder: Node, listed: Nodes, editor: Editor) -> None:
    """`holder.retry` becomes policy rules and a paginator of the tasks in `listed`."""
    retry = holder["retry"]
    if isinstance(retry, dict) and ("on_error" in retry or "on_success" in retry):
        _by_outcome(retry, listed, editor)
    elif isinstance(retry, int) and not isinstance(retry, bool):
        action = editor.map(holder, "retry")
        editor.put(action, "max_attempts", retry, holder, "retry")
        again_after_error(action, guards.TRUE, listed, editor)
    elif isinstance(retry, dict):
        _one(retry, listed, editor)
    elif isinstance(retry, list):
        for index, rule in enumerate(retry):
            if isinstance(rule, dict):
                _one(rule, listed, editor)
            else:
                editor.fault(
                    retry,
                    index,
                    Code.BAD_TYPE,
                    "a retry rule is a mapping",
                    "{when: …, then: {max_attempts: 3}}",
                )
    else:
        hint = "retry: 3, or retry: [{when: …, then: {max_attempts: 3, initial_delay: 1s}}]"
        editor.fault(
            holder,
            "retry",
            Code.BAD_TYPE,
            "`retry` is a number, a mapping or a list of rules",
            hint,
        )
        del holder["retry"]
        return
    editor.note(
        holder,
        "retry",
        "`retry` is now `spec.policy.rules` (errors) and `spec.paginate` (answers) of a task",
    )
    del holder["retry"]


def _by_outcome(retry: Node, listed: Nodes, editor: Editor) -> None:
    for outcome in [key for key in retry if key not in ("on_error", "on_success")]:
        editor.fault(
            retry,
            outcome,
            Code.UNKNOWN_KEY,
            f"unknown key `{outcome}` in retry",
            "on_error, on_success",
        )
    for outcome in ("on_error", "on_success"):
        if outcome in retry and not isinstance(retry[outcome], dict):
            editor.fault(
                retry, outcome, Code.BAD_TYPE, f"`{outcome}` must be a mapping", "{max_attempts: 3}"
            )
    if isinstance(retry.get("on_error"), dict):
        action = retry["on_error"]
        again_after_error(action, _own_guard(action, editor), listed, editor)
    if isinstance(retry.get("on_success"), dict):
        paginate(retry["on_success"], _own_guard(retry["on_success"], editor), listed, editor)


def _one(rule: Node, listed: Nodes, editor: Editor) -> None:
    action = rule
    if isinstance(rule.get("then"), dict):
        action = rule["then"]
    expression = _own_guard(rule, editor)
    for key in [key for key in rule if action is not rule and key != "then"]:
        editor.fault(
            rule,
            key,
            Code.UNKNOWN_KEY,
            f"unknown key `{key}` in a retry rule",
            "a rule has `when` and `then`",
        )
    if concerns_answer(action, expression):
        paginate(action, expression, listed, editor)
    else:
        again_after_error(action, expression, listed, editor)


def _own_guard(rule: Node, editor: Editor) -> str:
    for name in _GUARDS:
        if name in rule:
            expression = guards.expression(rule[name])
            if expression is None:
                editor.fault(
                    rule,
                    name,
                    Code.BAD_GUARD,
                    f"`{name}` must be one expression",
                    'write "{{ … }}"',
                )
            del rule[name]
            return expression or guards.TRUE
    return guards.TRUE


def concerns_answer(action: Node, expression: str) -> bool:
    if any(name in action for name in _PAGING):
        return True
    return bool(_OF_ANSWER.search(expression)) and not _OF_ERROR.search(expression)


def again_after_error(action: Node, expression: str, listed: Nodes, editor: Editor) -> None:
    for old, new in _ACTION.items():
        if old in action and new not in action:
            editor.rename(action, old, new)
    backoff = action.get("backoff")
    if isinstance(backoff, int | float) and not isinstance(backoff, bool):
        editor.rename(action, "backoff", "multiplier")
    if "multiplier" in action and "backoff" not in action:
        editor.put(action, "backoff", "exponential", action, "multiplier")
    meaning = dict.fromkeys(guards.EVENTS.values(), guards.TRUE)
    condition = guards.without_events(expression, meaning)
    add_rule(listed, guards.all_of(guards.FAILED, condition), "retry", action, editor)


def while_a_try_is_left(rule: Node, editor: Editor) -> None:
    """Add to a retry's guard that an attempt is left, so that the rules after it act when none is."""
    guard = guards.expression(rule.get("when"))
    given = rule["then"].get("attempts", DEFAULT_ATTEMPTS)
    attempts: str | None = str(given)
    if isinstance(given, str) and "{{" in given:
        attempts = guards.expression(given)
    if guard is not None and attempts is not None:
        condition = guards.all_of(guard, f"_attempt < {attempts}")
        editor.put(rule, "when", guards.guard(condition), rule, "then")


def rules_of(task: Node) -> Nodes:
    """The policy rules of a task, in either spelling."""
    rules = policy_rules(task.get("spec"))
    if isinstance(rules, list):
        return rules
    return []


def add_rule(listed: Nodes, expression: str, do: str, action: Node, editor: Editor) -> None:
    """Add the same policy rule at the end of every task's policy."""
    first = next(iter(action), None)
    for task in maps(listed):
        then = editor.map(action)
        editor.put(then, "do", do, action, first or "do")
        for key in action:
            editor.put(then, key, copy.deepcopy(action[key]), action, key)
        rule = editor.map(action)
        editor.put(rule, "when", guards.guard(expression), action, first or "when")
        editor.put(rule, "then", then, action, first or "then")
        editor.append(_rules(task, action, editor), rule, action)


def _rules(task: Node, origin: Node, editor: Editor) -> Nodes:
    spec = editor.below(task, "spec", origin="kind")
    rules: Nodes
    if isinstance(spec.get("policy"), list):
        rules = spec["policy"]
        return rules
    policy = editor.below(spec, "policy", origin=None)
    if not isinstance(policy.get("rules"), list):
        editor.put(policy, "rules", editor.seq(origin), policy, "rules")
    rules = policy["rules"]
    return rules


def paginate(page: Node, expression: str, listed: Nodes, editor: Editor) -> None:
    """Make the rule the paginator of the last http task, or of the last task if none is http."""
    for old, new in _PAGE.items():
        if old in page and new not in page:
            editor.rename(page, old, new)
    _collect(page, editor)
    _page_sink(page, editor)
    meaning = dict.fromkeys(guards.EVENTS.values(), guards.TRUE)
    guard = guards.guard(guards.without_events(expression, meaning))
    editor.put(page, "when", guard, page, next(iter(page), "when"))
    tasks = maps(listed)
    candidates = [task for task in tasks if task.get("kind") == "http"] or tasks
    if not candidates:
        editor.fault(page, None, Code.OLD_FORM, "a pagination needs a tool that is called again")
        return
    spec = editor.below(candidates[-1], "spec", origin="kind")
    if "paginate" in spec:
        message = "a task has one pagination rule"
        editor.fault(page, "when", Code.OLD_FORM, message, "combine the rules with `or`")
        return
    editor.put(spec, "paginate", page, page, "when")


def _collect(page: Node, editor: Editor) -> None:
    collect = page.get("collect")
    if isinstance(collect, str):
        node = editor.map(page, "collect")
        editor.put(node, "strategy", collect, page, "collect")
        editor.put(page, "collect", node, page, "collect")
    elif isinstance(collect, dict):
        for old in ("var", "target", "as"):
            if old in collect and "into" not in collect:
                editor.rename(collect, old, "into")
        into: Any = collect.get("into")
        if isinstance(into, str) and into.startswith(("ctx.", "vars.")):
            editor.put(collect, "into", into.split(".", 1)[1], collect, "into")


def _page_sink(page: Node, editor: Editor) -> None:
    per_page = page.get("per_iteration")
    if not isinstance(per_page, dict):
        return
    if isinstance(per_page.get("sink"), dict):
        sinks.rewrite(per_page["sink"], editor)
        editor.move(per_page, "sink", page)
    for key in list(per_page):
        message = f"unknown key `{key}` in per_iteration"
        editor.fault(per_page, key, Code.UNKNOWN_KEY, message, "per_iteration: {sink: …}")
    del page["per_iteration"]
