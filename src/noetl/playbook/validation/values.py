"""Values that are well typed but make no sense together: loops, assignments, policies, sinks."""

import re
from typing import Any

from noetl.model.playbook_state import MAX_STATE_NAMES, find_name_problem
from noetl.playbook.dialect.editor import Editor, Node, list_maps
from noetl.playbook.findings import Code
from noetl.playbook.model import BUILT_IN_TASKS, SPARK_LOOP_KINDS
from noetl.playbook.validation.document_facts import (
    DocumentFacts,
    get_child,
    get_literal,
    get_text,
    iterate_task_targets,
    list_tasks,
)
from noetl.playbook.validation.shape import did_you_mean, iterate_tasks
from noetl.template.errors import TemplateError
from noetl.template.parsing import parse

_ASSIGNABLE = re.compile(
    r"(?:(?:ctx|iter|step|state)\.)?[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
)
_HTTP_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_SINK_KINDS = ("postgres", "duckdb", "http", "file", "object")  # where a sink can write
_TRANSFER_KINDS = ("postgres", "duckdb", "file")  # what a transfer reads and writes
_CLAIM_KINDS = ("postgres", "duckdb")
_ACTION_OF_FIELD = {
    "attempts": "retry",
    "delay": "retry",
    "backoff": "retry",
    "multiplier": "retry",
    "max_delay": "retry",
    "jitter": "retry",
    "exhausted": "retry",
    "to": "jump",
    "max_jumps": "jump",
    "message": "fail",
}
_CHANGING_STATEMENT = re.compile(r"\s*(update|delete|insert|merge)\b", re.IGNORECASE)
_RETURNING_CLAUSE = re.compile(r"\breturning\b", re.IGNORECASE)
_SOURCES = ("query", "path", "ref")


def check(world: DocumentFacts, editor: Editor) -> None:
    for step in world.steps:
        editor.step = get_text(step, "step")
        _check_assignments(step, world, editor)
        for arc in list_maps(get_child(step, "next").get("arcs")):
            _check_assignments(arc, world, editor)
        if isinstance(step.get("loop"), dict):
            _check_loop(step["loop"], editor)
            _check_tasks_on_spark(step, editor)
            _check_parallel_writes(step, editor)
    for name, task in iterate_tasks(world.document):
        editor.step = name
        _check_task(task, world, editor)
    editor.step = None
    for entry in list_maps(world.document.get("keychain")):
        _check_keychain_entry(entry, editor)


# ---- assignments ----


def _check_assignments(node: Node, world: DocumentFacts, editor: Editor) -> None:
    given = get_child(node, "set")
    for name in given:
        root = name.split(".", 1)[0]
        if "." in name and root in ("workload", "output", "keychain", "input", "args", "loop"):
            message = f"`{name}` cannot be assigned"
            hint = "assign to ctx., iter., step. or state."
            editor.add_error(given, name, Code.BAD_VALUE, message, hint)
        elif "." in name and root not in ("ctx", "iter", "step", "state"):
            message = (
                f"`{name}` is assigned nowhere: a name starts with ctx., iter., step. or state."
            )
            editor.add_error(given, name, Code.BAD_VALUE, message, f"write ctx.{name}")
        elif not _ASSIGNABLE.fullmatch(name):
            message = f"`{name}` is not a name that can be assigned"
            editor.add_error(given, name, Code.BAD_NAME, message, "ctx.total, iter.page")
        elif name.startswith("state."):
            _check_state_assignment(given, name, world, editor)


def _check_state_assignment(given: Node, name: str, world: DocumentFacts, editor: Editor) -> None:
    problem = find_name_problem(name.split(".")[1])
    if problem is not None:
        editor.add_error(given, name, Code.BAD_NAME, problem, "state.watermark")
    if world.hides_state:
        message = "`state` is a workload key or a step of this playbook, so that state between executions cannot be used"
        hint = "give the workload key or the step another name"
        editor.add_error(given, name, Code.SHADOWED_NAME, message, hint)
    count = len(world.assigned_state)
    if count > MAX_STATE_NAMES:
        message = f"the playbook sets {count} names of state, at most {MAX_STATE_NAMES} are kept"
        editor.add_error(given, name, Code.BAD_VALUE, message, "put several values into one map")


# ---- loops ----


def _check_loop(loop: Node, editor: Editor) -> None:
    spec = get_child(loop, "spec")
    mode = spec.get("mode", "sequential")
    if "cursor" in loop:
        _check_cursor_loop(loop, mode, editor)
    elif mode == "cursor":
        message = "mode cursor needs `loop.cursor: {kind, auth, claim}`"
        editor.add_error(spec, "mode", Code.MISSING_FIELD, message)
    elif "in" not in loop:
        hint = 'loop: {in: "{{ … }}", iterator: row}'
        editor.add_error(loop, None, Code.MISSING_FIELD, "the loop has no `in`", hint)
    else:
        _check_collection(loop, editor)
    _check_loop_spec(spec, mode, editor)


def _check_cursor_loop(loop: Node, mode: Any, editor: Editor) -> None:
    cursor = get_child(loop, "cursor")
    _check_cursor_kind(cursor, editor)
    _check_claim(cursor, editor)
    if mode != "cursor":
        message = "a loop with `cursor` needs `spec: {mode: cursor}`"
        editor.add_error(loop, "cursor", Code.BAD_VALUE, message, "add the mode, or loop over `in`")
    if loop.get("in") is not None:
        message = "a cursor loop claims its items; it has no `in`"
        editor.add_error(loop, "in", Code.BAD_VALUE, message, "remove one of them")


def _check_cursor_kind(cursor: Node, editor: Editor) -> None:
    """A claim is a statement. Two built-in kinds can run it; others may come with a package."""
    kind = get_literal(cursor.get("kind"))
    if kind is None or kind in _CLAIM_KINDS:
        return
    suggestion = did_you_mean(kind, _CLAIM_KINDS)
    hint = suggestion or f"a claim is a statement of {' or '.join(_CLAIM_KINDS)}"
    if kind in BUILT_IN_TASKS or suggestion:
        message = f"a cursor cannot claim from `{kind}`"
        editor.add_error(cursor, "kind", Code.UNKNOWN_KIND, message, hint)
    else:
        editor.add_finding(
            cursor, "kind", Code.UNKNOWN_KIND, f"no tool `{kind}` here", hint, "warning"
        )


def _check_claim(cursor: Node, editor: Editor) -> None:
    """An UPDATE without RETURNING claims rows that no worker gets."""
    claim = cursor.get("claim")
    if not isinstance(claim, str) or "{%" in claim or cursor.get("kind") not in _CLAIM_KINDS:
        return
    if _CHANGING_STATEMENT.match(claim) and not _RETURNING_CLAUSE.search(claim):
        message = "the claim returns no rows, so those that it claims are worked on by nobody"
        hint = "end the statement with RETURNING and the columns"
        editor.add_error(cursor, "claim", Code.BAD_VALUE, message, hint)


def _check_tasks_on_spark(step: Node, editor: Editor) -> None:
    if get_child(get_child(step["loop"], "spec"), "policy").get("exec") != "spark":
        return
    for task in list_tasks(step):
        kind = get_literal(task.get("kind"))
        if kind in BUILT_IN_TASKS and kind not in SPARK_LOOP_KINDS | {"workbook"}:
            message = f"a loop on Spark cannot run {kind}"
            hint = f"it runs {', '.join(sorted(SPARK_LOOP_KINDS))}; remove `exec: spark`"
            editor.add_error(task, "kind", Code.BAD_VALUE, message, hint)


def _check_collection(loop: Node, editor: Editor) -> None:
    value = loop["in"]
    if isinstance(value, bool | int | float):
        message = f"a loop runs over a list, not over {str(value).lower()}"
        editor.add_error(
            loop, "in", Code.BAD_VALUE, message, 'for a number of times: "{{ range(n) }}"'
        )
    elif isinstance(value, str) and "{{" not in value and "{%" not in value:
        message = f"`in: {value[:60]}` is plain text: the loop runs once"
        editor.add_finding(
            loop, "in", Code.BAD_VALUE, message, f'write "{{{{ {value[:60]} }}}}"', "warning"
        )
    elif isinstance(value, str) and _yields_text(value):
        message = f"`in: {value[:60]}` has text around its braces, so it is one text: the loop would run once"
        hint = 'write the list alone: "{{ rows }}"; for one text, a list of it: ["…"]'
        editor.add_error(loop, "in", Code.BAD_VALUE, message, hint)


def _yields_text(value: str) -> bool:
    try:
        return parse(value).expression is None
    except TemplateError:  # reported where templates are checked
        return False


def _check_loop_spec(spec: Node, mode: Any, editor: Editor) -> None:
    if "frame" in spec and mode != "cursor":
        message = "`frame` belongs to mode cursor"
        editor.add_error(spec, "frame", Code.IGNORED_FIELD, message, "use `chunk` for other modes")
    # on Spark, `max_in_flight` is the number of items that run at once in a task
    on_spark = get_child(spec, "policy").get("exec") == "spark"
    if mode == "sequential" and not on_spark and spec.get("max_in_flight", 1) != 1:
        message = "`max_in_flight` has no effect in a sequential loop"
        hint = "add `mode: parallel`"
        editor.add_finding(spec, "max_in_flight", Code.IGNORED_FIELD, message, hint, "warning")
    reduced = get_child(spec, "reduce")
    for name in reduced:
        if "." in name and not name.startswith(("ctx.", "state.")):
            message = f"only names of ctx and state are reduced, not `{name}`"
            editor.add_error(reduced, name, Code.BAD_VALUE, message, f"ctx.{name.split('.')[-1]}")


def _check_parallel_writes(step: Node, editor: Editor) -> None:
    """Iterations that run at the same time may write `ctx` and `state` only through a reducer."""
    spec = get_child(step, "loop", "spec")
    on_spark = get_child(spec, "policy").get("exec") == "spark"
    if spec.get("mode") not in ("parallel", "cursor") and not on_spark:
        return
    reduced = {_find_variable(name) for name in get_child(spec, "reduce")}
    for task in list_tasks(step):
        _check_shared_writes(task, reduced, editor)
    _warn_of_unused_reducers(step, editor)


def _check_shared_writes(task: Node, reduced: set[str], editor: Editor) -> None:
    rules = list_maps(get_child(task, "spec", "policy").get("rules"))
    for node in (task, *(get_child(rule, "then") for rule in rules)):
        given = get_child(node, "set")
        for name in given:
            is_shared = name.startswith(("ctx.", "state.")) or "." not in name
            if is_shared and _find_variable(name) not in reduced:
                _report_unreduced(given, name, name, editor)
    collect = get_child(task, "spec", "paginate", "collect")
    into = get_text(collect, "into")
    if into is not None and _find_variable(into) not in reduced:
        _report_unreduced(collect, "into", f"ctx.{into}", editor)


def _warn_of_unused_reducers(step: Node, editor: Editor) -> None:
    """Warn of reducers for names that no task of the loop sets."""
    targets: set[str] = set()
    for task in list_tasks(step):
        targets.update(iterate_task_targets(task))
    written = {
        _find_variable(name) for name in targets if name.startswith("ctx.") or "." not in name
    }
    reducers = get_child(step, "loop", "spec", "reduce")
    for name in reducers:
        if not name.startswith("state.") and _find_variable(name) not in written:
            hint = did_you_mean(_find_variable(name), written)
            message = f"no task of this loop sets `{name}`"
            editor.add_finding(reducers, name, Code.IGNORED_FIELD, message, hint, "warning")


def _find_variable(name: str) -> str:
    """The variable that an assignment changes. A name of state keeps `state.` in front."""
    if name.startswith("state."):
        return ".".join(name.split(".")[:2])
    return name.removeprefix("ctx.").split(".")[0]


def _report_unreduced(node: Node, key: str, name: str, editor: Editor) -> None:
    if not name.startswith(("ctx.", "state.")):
        name = f"ctx.{name}"
    message = f"parallel iterations all write `{name}`, and no reducer says how to combine them"
    hint = f"add `loop.spec.reduce: {{{name}: sum}}` (sum, min, max, append, merge, last), or write to iter."
    editor.add_error(node, key, Code.PARALLEL_CTX_WRITE, message, hint)


# ---- tasks ----


def _check_task(task: Node, world: DocumentFacts, editor: Editor) -> None:
    _check_assignments(task, world, editor)
    _check_policy(task, world, editor)
    match task.get("kind"):
        case "sink":
            _check_target(get_child(task, "target"), _SINK_KINDS, "a sink", editor)
        case "transfer":
            _check_source(task, editor)
            _check_target(get_child(task, "target"), _TRANSFER_KINDS, "a transfer", editor)
        case "http":
            _check_http(task, editor)
        case "playbook":
            _check_child_playbook(task, world, editor)
        case _:
            pass
    sink = get_child(task, "spec", "paginate", "sink")
    if sink:
        _check_target(get_child(sink, "target"), _SINK_KINDS, "a sink", editor)
    _check_output(task, editor)


def _check_policy(task: Node, world: DocumentFacts, editor: Editor) -> None:
    rules = list_maps(get_child(task, "spec", "policy").get("rules"))
    for index, rule in enumerate(rules):
        then = get_child(rule, "then")
        _check_action(then, editor)
        _check_assignments(then, world, editor)
        always_matches = rule.get("when", True) in (True, None)
        if always_matches and index < len(rules) - 1:
            message = "this rule always matches; the rules after it are never tried"
            editor.add_finding(
                rule, "when", Code.UNREACHABLE_ARC, message, "`else` stands last", "warning"
            )
    page = get_child(task, "spec", "paginate")
    _check_count(page, "max_attempts", editor)


def _check_action(then: Node, editor: Editor) -> None:
    do = then.get("do", "continue")
    exhausted = None
    actions = {do}
    if do == "retry":
        exhausted = then.get("exhausted")
        actions.add(exhausted or "fail")
    if do in ("continue", "retry", "jump", "break", "fail"):
        for key, owner in _ACTION_OF_FIELD.items():
            if then.get(key) is not None and owner not in actions:
                message = f"`{key}` belongs to `do: {owner}`, not to `do: {do}`"
                editor.add_error(then, key, Code.IGNORED_FIELD, message, f"do: {owner}")
    hint = "to: a task name, or previous"
    if do == "jump" and "to" not in then:
        editor.add_error(then, "do", Code.MISSING_FIELD, "`do: jump` needs `to`", hint)
    if exhausted == "jump" and "to" not in then:
        editor.add_error(
            then, "exhausted", Code.MISSING_FIELD, "`exhausted: jump` needs `to`", hint
        )
    _check_count(then, "attempts", editor)
    has_other_backoff = then.get("backoff") not in (None, "exponential")
    if then.get("multiplier") is not None and has_other_backoff:
        message = "`multiplier` belongs to `backoff: exponential`"
        editor.add_error(then, "multiplier", Code.IGNORED_FIELD, message)


def _check_count(node: Node, key: str, editor: Editor) -> None:
    value = node.get(key)
    number = value
    if isinstance(value, str):
        literal = get_literal(value)
        if literal is None:
            return  # a template computes it
        if not literal.strip().isdigit():
            editor.add_error(
                node, key, Code.BAD_VALUE, f"`{key}` is a number of calls, not {value!r}"
            )
            return
        number = int(literal)
    if isinstance(number, int) and number < 1:
        message = f"`{key}` counts every call, the first included: at least 1, not {number}"
        editor.add_error(node, key, Code.BAD_VALUE, message)


def _check_target(
    target: Node,
    kinds: tuple[str, ...],
    who: str,
    editor: Editor,
) -> None:
    """Check where a sink or a transfer writes."""
    kind = get_literal(target.get("kind"))
    if kind is not None and kind not in kinds:
        hint = did_you_mean(kind, kinds) or f"{who} writes to {', '.join(kinds)}"
        editor.add_error(target, "kind", Code.UNKNOWN_KIND, f"{who} cannot write to `{kind}`", hint)
    if target.get("mode") == "upsert" and not target.get("key"):
        message = "mode upsert needs `key`: the columns that identify a row"
        editor.add_error(target, "mode", Code.UPSERT_WITHOUT_KEY, message, "key: [id]")
    if kind in ("postgres", "duckdb") and not target.get("table"):
        message = f"`table` is missing in the {kind} target"
        editor.add_error(target, "kind", Code.MISSING_FIELD, message, "table: schema.name")
    for needed, what in (("http", "url"), ("file", "path"), ("object", "path")):
        if kind == needed and not target.get(what):
            editor.add_error(
                target, "kind", Code.MISSING_FIELD, f"`{what}` is missing in the {kind} target"
            )


def _check_source(task: Node, editor: Editor) -> None:
    source = get_child(task, "source")
    known = ("kind", "auth", "query", "path", "ref", "format", "database", "params")
    for key in source:
        if key not in known:
            message = f"unknown key `{key}` in the source of a transfer"
            hint = did_you_mean(key, known) or f"known here: {', '.join(known)}"
            editor.add_error(source, key, Code.UNKNOWN_KEY, message, hint)
    kind = get_literal(source.get("kind"))
    if kind is not None and kind not in _TRANSFER_KINDS and "ref" not in source:
        hint = (
            did_you_mean(kind, _TRANSFER_KINDS)
            or f"a transfer reads {', '.join(_TRANSFER_KINDS)}, or `ref`"
        )
        editor.add_error(
            source, "kind", Code.UNKNOWN_KIND, f"a transfer cannot read `{kind}`", hint
        )
    given = [key for key in _SOURCES if key in source]
    if "kind" not in source and "ref" not in source:
        editor.add_error(
            task, "source", Code.MISSING_FIELD, "`kind` is missing in the source of a transfer"
        )
    if len(given) != 1:
        found = ", ".join(given) or "none"
        message = f"the source of a transfer has exactly one of query, path, ref; found {found}"
        editor.add_error(task, "source", Code.BAD_VALUE, message)


def _check_http(task: Node, editor: Editor) -> None:
    method = get_literal(task.get("method"))
    if method is not None and method.upper() not in _HTTP_METHODS:
        hint = did_you_mean(method.upper(), _HTTP_METHODS) or ", ".join(sorted(_HTTP_METHODS))
        editor.add_error(task, "method", Code.BAD_VALUE, f"{method!r} is no HTTP method", hint)
    url = get_literal(task.get("url"))
    if url is not None and not re.match(r"(https?|demo)://\S", url):
        hint = "it starts with http:// or https://"
        editor.add_error(task, "url", Code.BAD_VALUE, f"{url!r} is no address", hint)
    if task.get("body") is not None and task.get("form") is not None:
        editor.add_error(task, "form", Code.BAD_VALUE, "a request has `body` or `form`, not both")


def _check_child_playbook(task: Node, world: DocumentFacts, editor: Editor) -> None:
    path = get_literal(task.get("path"))
    if path is not None and not path.strip():
        hint = "the path under which the child is registered"
        editor.add_error(task, "path", Code.BAD_VALUE, "`path` is empty", hint)
    if task.get("wait") is False and "return_step" in task:
        message = "`return_step` has no effect with `wait: false`"
        editor.add_error(
            task, "return_step", Code.IGNORED_FIELD, message, "the value is {execution_id}"
        )


def _check_output(task: Node, editor: Editor) -> None:
    output = get_child(task, "output")
    if output.get("kind") == "postgres" and "auth" not in output:
        editor.add_error(
            output, "kind", Code.MISSING_FIELD, "`output: {kind: postgres}` needs `auth`"
        )
    if output.get("mode") == "upsert" and not output.get("key"):
        editor.add_error(
            output, "mode", Code.UPSERT_WITHOUT_KEY, "mode upsert needs `key`", "key: [id]"
        )
    if output.get("scope") == "permanent" and output.get("ttl") is not None:
        message = "a permanent result has no `ttl`"
        editor.add_error(output, "ttl", Code.BAD_VALUE, message, "leave one of them out")


# ---- keychain ----

_NEEDED_KEYS = {
    "static": ("map",),
    "env": ("env", "map"),
    "credential": ("credential", "auth"),
    "oauth2": ("url", "auth"),
}


def _check_keychain_entry(entry: Node, editor: Editor) -> None:
    needed = _NEEDED_KEYS.get(str(entry.get("kind")), ())
    if needed and not any(key in entry for key in needed):
        keys = " or ".join(f"`{key}`" for key in needed)
        message = f"a keychain entry of kind {entry['kind']} needs {keys}"
        editor.add_error(entry, "kind", Code.MISSING_FIELD, message)
