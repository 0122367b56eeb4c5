"""The two older meanings of `retry`: repeat a call after an error, and repeat it after an answer
(pagination, polling).
"""

import copy
import re
from typing import Any

from noetl.playbook.dialect import guards, sinks
from noetl.playbook.dialect.editor import Editor, Node, Nodes, get_policy_rules, list_maps
from noetl.playbook.findings import Code
from noetl.playbook.model import DEFAULT_ATTEMPTS

_ACTION_KEYS = {
    "max_attempts": "attempts",
    "initial_delay": "delay",
    "interval": "delay",
    "backoff_multiplier": "multiplier",
    "backoff_factor": "multiplier",
    "backoff_strategy": "backoff",
    "max_retries": "attempts",
}
_PAGE_KEYS = {
    "attempts": "max_attempts",
    "max_pages": "max_attempts",
    "max_iterations": "max_attempts",
    "initial_delay": "delay",
    "interval": "delay",
    "while": "when",
}
_PAGING_KEYS = ("next_call", "collect", "per_iteration")
_GUARD_KEYS = ("when", "retry_when", "while")
_OF_ANSWER = re.compile(r"\b(response|result)\b(?!\.status_code)|\boutput\.data\b")
_OF_ERROR = re.compile(r"\berror\b(?! is not defined)|\bcall\.error\b|\bstatus_code\b")


def rewrite(holder: Node, listed: Nodes, editor: Editor) -> None:
    """`holder.retry` becomes policy rules and a paginator of the tasks in `listed`."""
    retry = holder["retry"]
    if isinstance(retry, dict) and ("on_error" in retry or "on_success" in retry):
        _rewrite_outcomes(retry, listed, editor)
    elif isinstance(retry, int) and not isinstance(retry, bool):
        action = editor.make_map(holder, "retry")
        editor.put(action, "max_attempts", retry, holder, "retry")
        retry_after_error(action, guards.TRUE_GUARD, listed, editor)
    elif isinstance(retry, dict):
        _rewrite_rule(retry, listed, editor)
    elif isinstance(retry, list):
        for index, rule in enumerate(retry):
            if isinstance(rule, dict):
                _rewrite_rule(rule, listed, editor)
            else:
                editor.add_error(
                    retry,
                    index,
                    Code.BAD_TYPE,
                    "a retry rule is a mapping",
                    "{when: …, then: {max_attempts: 3}}",
                )
    else:
        hint = "retry: 3, or retry: [{when: …, then: {max_attempts: 3, initial_delay: 1s}}]"
        editor.add_error(
            holder,
            "retry",
            Code.BAD_TYPE,
            "`retry` is a number, a mapping or a list of rules",
            hint,
        )
        del holder["retry"]
        return
    editor.add_note(
        holder,
        "retry",
        "`retry` is now `spec.policy.rules` (errors) and `spec.paginate` (answers) of a task",
    )
    del holder["retry"]


def _rewrite_outcomes(retry: Node, listed: Nodes, editor: Editor) -> None:
    for outcome in [key for key in retry if key not in ("on_error", "on_success")]:
        editor.add_error(
            retry,
            outcome,
            Code.UNKNOWN_KEY,
            f"unknown key `{outcome}` in retry",
            "on_error, on_success",
        )
    for outcome in ("on_error", "on_success"):
        if outcome in retry and not isinstance(retry[outcome], dict):
            editor.add_error(
                retry, outcome, Code.BAD_TYPE, f"`{outcome}` must be a mapping", "{max_attempts: 3}"
            )
    if isinstance(retry.get("on_error"), dict):
        action = retry["on_error"]
        retry_after_error(action, _take_guard(action, editor), listed, editor)
    if isinstance(retry.get("on_success"), dict):
        add_paginator(retry["on_success"], _take_guard(retry["on_success"], editor), listed, editor)


def _rewrite_rule(rule: Node, listed: Nodes, editor: Editor) -> None:
    action = rule
    if isinstance(rule.get("then"), dict):
        action = rule["then"]
    expression = _take_guard(rule, editor)
    for key in [key for key in rule if action is not rule and key != "then"]:
        editor.add_error(
            rule,
            key,
            Code.UNKNOWN_KEY,
            f"unknown key `{key}` in a retry rule",
            "a rule has `when` and `then`",
        )
    if concerns_answer(action, expression):
        add_paginator(action, expression, listed, editor)
    else:
        retry_after_error(action, expression, listed, editor)


def _take_guard(rule: Node, editor: Editor) -> str:
    for name in _GUARD_KEYS:
        if name in rule:
            expression = guards.parse_guard(rule[name])
            if expression is None:
                editor.add_error(
                    rule,
                    name,
                    Code.BAD_GUARD,
                    f"`{name}` must be one expression",
                    'write "{{ … }}"',
                )
            del rule[name]
            return expression or guards.TRUE_GUARD
    return guards.TRUE_GUARD


def concerns_answer(action: Node, expression: str) -> bool:
    if any(name in action for name in _PAGING_KEYS):
        return True
    return bool(_OF_ANSWER.search(expression)) and not _OF_ERROR.search(expression)


def retry_after_error(action: Node, expression: str, listed: Nodes, editor: Editor) -> None:
    for old, new in _ACTION_KEYS.items():
        if old in action and new not in action:
            editor.rename(action, old, new)
    backoff = action.get("backoff")
    if isinstance(backoff, int | float) and not isinstance(backoff, bool):
        editor.rename(action, "backoff", "multiplier")
    if "multiplier" in action and "backoff" not in action:
        editor.put(action, "backoff", "exponential", action, "multiplier")
    meaning = dict.fromkeys(guards.EVENTS.values(), guards.TRUE_GUARD)
    condition = guards.replace_events(expression, meaning)
    add_rule(listed, guards.join_all(guards.FAILED_GUARD, condition), "retry", action, editor)


def limit_retry(rule: Node, editor: Editor) -> None:
    """Add to a retry's guard that an attempt is left, so that the rules after it act when none is."""
    guard = guards.parse_guard(rule.get("when"))
    given = rule["then"].get("attempts", DEFAULT_ATTEMPTS)
    attempts: str | None = str(given)
    if isinstance(given, str) and "{{" in given:
        attempts = guards.parse_guard(given)
    if guard is not None and attempts is not None:
        condition = guards.join_all(guard, f"_attempt < {attempts}")
        editor.put(rule, "when", guards.make_guard(condition), rule, "then")


def list_policy_rules(task: Node) -> Nodes:
    """The policy rules of a task, in either spelling."""
    rules = get_policy_rules(task.get("spec"))
    if isinstance(rules, list):
        return rules
    return []


def add_rule(
    listed: Nodes,
    expression: str,
    do: str,
    action: Node,
    editor: Editor,
) -> None:
    """Add the same policy rule at the end of every task's policy."""
    first = next(iter(action), None)
    for task in list_maps(listed):
        then = editor.make_map(action)
        editor.put(then, "do", do, action, first or "do")
        for key in action:
            editor.put(then, key, copy.deepcopy(action[key]), action, key)
        rule = editor.make_map(action)
        editor.put(rule, "when", guards.make_guard(expression), action, first or "when")
        editor.put(rule, "then", then, action, first or "then")
        editor.append(_ensure_rules(task, action, editor), rule, action)


def _ensure_rules(task: Node, origin: Node, editor: Editor) -> Nodes:
    spec = editor.ensure_map(task, "spec", origin="kind")
    rules: Nodes
    if isinstance(spec.get("policy"), list):
        rules = spec["policy"]
        return rules
    policy = editor.ensure_map(spec, "policy", origin=None)
    if not isinstance(policy.get("rules"), list):
        editor.put(policy, "rules", editor.make_seq(origin), policy, "rules")
    rules = policy["rules"]
    return rules


def add_paginator(page: Node, expression: str, listed: Nodes, editor: Editor) -> None:
    """Make the rule the paginator of the last http task, or of the last task if none is http."""
    for old, new in _PAGE_KEYS.items():
        if old in page and new not in page:
            editor.rename(page, old, new)
    _rewrite_collect(page, editor)
    _rewrite_page_sink(page, editor)
    meaning = dict.fromkeys(guards.EVENTS.values(), guards.TRUE_GUARD)
    guard = guards.make_guard(guards.replace_events(expression, meaning))
    editor.put(page, "when", guard, page, next(iter(page), "when"))
    tasks = list_maps(listed)
    candidates = [task for task in tasks if task.get("kind") == "http"] or tasks
    if not candidates:
        editor.add_error(
            page, None, Code.OLD_FORM, "a pagination needs a tool that is called again"
        )
        return
    spec = editor.ensure_map(candidates[-1], "spec", origin="kind")
    if "paginate" in spec:
        message = "a task has one pagination rule"
        editor.add_error(page, "when", Code.OLD_FORM, message, "combine the rules with `or`")
        return
    editor.put(spec, "paginate", page, page, "when")


def _rewrite_collect(page: Node, editor: Editor) -> None:
    collect = page.get("collect")
    if isinstance(collect, str):
        node = editor.make_map(page, "collect")
        editor.put(node, "strategy", collect, page, "collect")
        editor.put(page, "collect", node, page, "collect")
    elif isinstance(collect, dict):
        for old in ("var", "target", "as"):
            if old in collect and "into" not in collect:
                editor.rename(collect, old, "into")
        into: Any = collect.get("into")
        if isinstance(into, str) and into.startswith(("ctx.", "vars.")):
            editor.put(collect, "into", into.split(".", 1)[1], collect, "into")


def _rewrite_page_sink(page: Node, editor: Editor) -> None:
    per_page = page.get("per_iteration")
    if not isinstance(per_page, dict):
        return
    if isinstance(per_page.get("sink"), dict):
        sinks.rewrite(per_page["sink"], editor)
        editor.move(per_page, "sink", page)
    for key in list(per_page):
        message = f"unknown key `{key}` in per_iteration"
        editor.add_error(per_page, key, Code.UNKNOWN_KEY, message, "per_iteration: {sink: …}")
    del page["per_iteration"]
