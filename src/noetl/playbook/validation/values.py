"""Values that are well typed but make no sense together: loops, assignments, policies, sinks."""

import re
from typing import Any

from noetl.model.playbook_state import MAX_STATE_NAMES, problem_with_name
from noetl.playbook import templates
from noetl.playbook.dialect.editor import Editor, Node, maps
from noetl.playbook.expressions import TemplateError
from noetl.playbook.findings import Code
from noetl.playbook.model import BUILT_IN, ON_SPARK
from noetl.playbook.validation.shape import did_you_mean, every_task
from noetl.playbook.validation.world import World, child, named, task_targets, tasks_of, text

_SET = re.compile(
    r"(?:(?:ctx|iter|step|state)\.)?[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
)
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_STORAGE = ("postgres", "duckdb", "http", "file", "object")  # where a sink can write
_TRANSFER = ("postgres", "duckdb", "file")  # what a transfer reads and writes
_CLAIMS = ("postgres", "duckdb")
_OF_ACTION = {
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
_CHANGES = re.compile(r"\s*(update|delete|insert|merge)\b", re.IGNORECASE)
_RETURNS = re.compile(r"\breturning\b", re.IGNORECASE)
_SOURCES = ("query", "path", "ref")


def check(world: World, editor: Editor) -> None:
    for step in world.steps:
        editor.step = text(step, "step")
        _assignments(step, world, editor)
        for arc in maps(child(step, "next").get("arcs")):
            _assignments(arc, world, editor)
        if isinstance(step.get("loop"), dict):
            _loop(step["loop"], editor)
            _on_spark(step, editor)
            _parallel_writes(step, editor)
    for name, task in every_task(world.document):
        editor.step = name
        _task(task, world, editor)
    editor.step = None
    for entry in maps(world.document.get("keychain")):
        _keychain(entry, editor)


# ---- assignments ----


def _assignments(node: Node, world: World, editor: Editor) -> None:
    given = child(node, "set")
    for name in given:
        root = name.split(".", 1)[0]
        if "." in name and root in ("workload", "output", "keychain", "input", "args", "loop"):
            message = f"`{name}` cannot be assigned"
            hint = "assign to ctx., iter., step. or state."
            editor.fault(given, name, Code.BAD_VALUE, message, hint)
        elif "." in name and root not in ("ctx", "iter", "step", "state"):
            message = (
                f"`{name}` is assigned nowhere: a name starts with ctx., iter., step. or state."
            )
            editor.fault(given, name, Code.BAD_VALUE, message, f"write ctx.{name}")
        elif not _SET.fullmatch(name):
            message = f"`{name}` is not a name that can be assigned"
            editor.fault(given, name, Code.BAD_NAME, message, "ctx.total, iter.page")
        elif name.startswith("state."):
            _state_assignment(given, name, world, editor)


def _state_assignment(given: Node, name: str, world: World, editor: Editor) -> None:
    problem = problem_with_name(name.split(".")[1])
    if problem is not None:
        editor.fault(given, name, Code.BAD_NAME, problem, "state.watermark")
    if world.hides_state:
        message = "`state` is a workload key or a step of this playbook, so that state between executions cannot be used"
        hint = "give the workload key or the step another name"
        editor.fault(given, name, Code.SHADOWED_NAME, message, hint)
    count = len(world.assigned_state)
    if count > MAX_STATE_NAMES:
        message = f"the playbook sets {count} names of state, at most {MAX_STATE_NAMES} are kept"
        editor.fault(given, name, Code.BAD_VALUE, message, "put several values into one map")


# ---- loops ----


def _loop(loop: Node, editor: Editor) -> None:
    spec = child(loop, "spec")
    mode = spec.get("mode", "sequential")
    if "cursor" in loop:
        _cursor_loop(loop, mode, editor)
    elif mode == "cursor":
        message = "mode cursor needs `loop.cursor: {kind, auth, claim}`"
        editor.fault(spec, "mode", Code.MISSING_FIELD, message)
    elif "in" not in loop:
        hint = 'loop: {in: "{{ … }}", iterator: row}'
        editor.fault(loop, None, Code.MISSING_FIELD, "the loop has no `in`", hint)
    else:
        _collection(loop, editor)
    _loop_extras(spec, mode, editor)


def _cursor_loop(loop: Node, mode: Any, editor: Editor) -> None:
    cursor = child(loop, "cursor")
    _cursor_kind(cursor, editor)
    _claim_returns_rows(cursor, editor)
    if mode != "cursor":
        message = "a loop with `cursor` needs `spec: {mode: cursor}`"
        editor.fault(loop, "cursor", Code.BAD_VALUE, message, "add the mode, or loop over `in`")
    if loop.get("in") is not None:
        message = "a cursor loop claims its items; it has no `in`"
        editor.fault(loop, "in", Code.BAD_VALUE, message, "remove one of them")


def _cursor_kind(cursor: Node, editor: Editor) -> None:
    """A claim is a statement. Two built-in kinds can run it; others may come with a package."""
    kind = named(cursor.get("kind"))
    if kind is None or kind in _CLAIMS:
        return
    suggestion = did_you_mean(kind, _CLAIMS)
    hint = suggestion or f"a claim is a statement of {' or '.join(_CLAIMS)}"
    if kind in BUILT_IN or suggestion:
        message = f"a cursor cannot claim from `{kind}`"
        editor.fault(cursor, "kind", Code.UNKNOWN_KIND, message, hint)
    else:
        editor.report(cursor, "kind", Code.UNKNOWN_KIND, f"no tool `{kind}` here", hint, "warning")


def _claim_returns_rows(cursor: Node, editor: Editor) -> None:
    """An UPDATE without RETURNING claims rows that no worker gets."""
    claim = cursor.get("claim")
    if not isinstance(claim, str) or "{%" in claim or cursor.get("kind") not in _CLAIMS:
        return
    if _CHANGES.match(claim) and not _RETURNS.search(claim):
        message = "the claim returns no rows, so those that it claims are worked on by nobody"
        hint = "end the statement with RETURNING and the columns"
        editor.fault(cursor, "claim", Code.BAD_VALUE, message, hint)


def _on_spark(step: Node, editor: Editor) -> None:
    if child(child(step["loop"], "spec"), "policy").get("exec") != "spark":
        return
    for task in tasks_of(step):
        kind = named(task.get("kind"))
        if kind in BUILT_IN and kind not in ON_SPARK | {"workbook"}:
            message = f"a loop on Spark cannot run {kind}"
            hint = f"it runs {', '.join(sorted(ON_SPARK))}; remove `exec: spark`"
            editor.fault(task, "kind", Code.BAD_VALUE, message, hint)


def _collection(loop: Node, editor: Editor) -> None:
    value = loop["in"]
    if isinstance(value, bool | int | float):
        message = f"a loop runs over a list, not over {str(value).lower()}"
        editor.fault(loop, "in", Code.BAD_VALUE, message, 'for a number of times: "{{ range(n) }}"')
    elif isinstance(value, str) and "{{" not in value and "{%" not in value:
        message = f"`in: {value[:60]}` is plain text: the loop runs once"
        editor.report(
            loop, "in", Code.BAD_VALUE, message, f'write "{{{{ {value[:60]} }}}}"', "warning"
        )
    elif isinstance(value, str) and _yields_text(value):
        message = f"`in: {value[:60]}` has text around its braces, so it is one text: the loop would run once"
        hint = 'write the list alone: "{{ rows }}"; for one text, a list of it: ["…"]'
        editor.fault(loop, "in", Code.BAD_VALUE, message, hint)


def _yields_text(value: str) -> bool:
    try:
        return templates.parse(value).expression is None
    except TemplateError:  # reported where templates are checked
        return False


def _loop_extras(spec: Node, mode: Any, editor: Editor) -> None:
    if "frame" in spec and mode != "cursor":
        message = "`frame` belongs to mode cursor"
        editor.fault(spec, "frame", Code.IGNORED_FIELD, message, "use `chunk` for other modes")
    # on Spark, `max_in_flight` is the number of items that run at once in a task
    on_spark = child(spec, "policy").get("exec") == "spark"
    if mode == "sequential" and not on_spark and spec.get("max_in_flight", 1) != 1:
        message = "`max_in_flight` has no effect in a sequential loop"
        hint = "add `mode: parallel`"
        editor.report(spec, "max_in_flight", Code.IGNORED_FIELD, message, hint, "warning")
    reduced = child(spec, "reduce")
    for name in reduced:
        if "." in name and not name.startswith(("ctx.", "state.")):
            message = f"only names of ctx and state are reduced, not `{name}`"
            editor.fault(reduced, name, Code.BAD_VALUE, message, f"ctx.{name.split('.')[-1]}")


def _parallel_writes(step: Node, editor: Editor) -> None:
    """Iterations that run at the same time may write `ctx` and `state` only through a reducer."""
    spec = child(step, "loop", "spec")
    on_spark = child(spec, "policy").get("exec") == "spark"
    if spec.get("mode") not in ("parallel", "cursor") and not on_spark:
        return
    reduced = {_root(name) for name in child(spec, "reduce")}
    for task in tasks_of(step):
        _shared_writes(task, reduced, editor)
    _unused_reducers(step, editor)


def _shared_writes(task: Node, reduced: set[str], editor: Editor) -> None:
    rules = maps(child(task, "spec", "policy").get("rules"))
    for node in (task, *(child(rule, "then") for rule in rules)):
        given = child(node, "set")
        for name in given:
            is_shared = name.startswith(("ctx.", "state.")) or "." not in name
            if is_shared and _root(name) not in reduced:
                _unreduced(given, name, name, editor)
    collect = child(task, "spec", "paginate", "collect")
    into = text(collect, "into")
    if into is not None and _root(into) not in reduced:
        _unreduced(collect, "into", f"ctx.{into}", editor)


def _unused_reducers(step: Node, editor: Editor) -> None:
    """Warn of reducers for names that no task of the loop sets."""
    targets: set[str] = set()
    for task in tasks_of(step):
        targets.update(task_targets(task))
    written = {_root(name) for name in targets if name.startswith("ctx.") or "." not in name}
    reducers = child(step, "loop", "spec", "reduce")
    for name in reducers:
        if not name.startswith("state.") and _root(name) not in written:
            hint = did_you_mean(_root(name), written)
            message = f"no task of this loop sets `{name}`"
            editor.report(reducers, name, Code.IGNORED_FIELD, message, hint, "warning")


def _root(name: str) -> str:
    """The variable that an assignment changes. A name of state keeps `state.` in front."""
    if name.startswith("state."):
        return ".".join(name.split(".")[:2])
    return name.removeprefix("ctx.").split(".")[0]


def _unreduced(node: Node, key: str, name: str, editor: Editor) -> None:
    if not name.startswith(("ctx.", "state.")):
        name = f"ctx.{name}"
    message = f"parallel iterations all write `{name}`, and no reducer says how to combine them"
    hint = f"add `loop.spec.reduce: {{{name}: sum}}` (sum, min, max, append, merge, last), or write to iter."
    editor.fault(node, key, Code.PARALLEL_CTX_WRITE, message, hint)


# ---- tasks ----


def _task(task: Node, world: World, editor: Editor) -> None:
    _assignments(task, world, editor)
    _policy(task, world, editor)
    match task.get("kind"):
        case "sink":
            _target(child(task, "target"), _STORAGE, "a sink", editor)
        case "transfer":
            _source(task, editor)
            _target(child(task, "target"), _TRANSFER, "a transfer", editor)
        case "http":
            _http(task, editor)
        case "playbook":
            _child_playbook(task, world, editor)
        case _:
            pass
    sink = child(task, "spec", "paginate", "sink")
    if sink:
        _target(child(sink, "target"), _STORAGE, "a sink", editor)
    _output(task, editor)


def _policy(task: Node, world: World, editor: Editor) -> None:
    rules = maps(child(task, "spec", "policy").get("rules"))
    for index, rule in enumerate(rules):
        then = child(rule, "then")
        _action(then, editor)
        _assignments(then, world, editor)
        always_matches = rule.get("when", True) in (True, None)
        if always_matches and index < len(rules) - 1:
            message = "this rule always matches; the rules after it are never tried"
            editor.report(
                rule, "when", Code.UNREACHABLE_ARC, message, "`else` stands last", "warning"
            )
    page = child(task, "spec", "paginate")
    _count(page, "max_attempts", editor)


def _action(then: Node, editor: Editor) -> None:
    do = then.get("do", "continue")
    exhausted = None
    actions = {do}
    if do == "retry":
        exhausted = then.get("exhausted")
        actions.add(exhausted or "fail")
    if do in ("continue", "retry", "jump", "break", "fail"):
        for key, owner in _OF_ACTION.items():
            if then.get(key) is not None and owner not in actions:
                message = f"`{key}` belongs to `do: {owner}`, not to `do: {do}`"
                editor.fault(then, key, Code.IGNORED_FIELD, message, f"do: {owner}")
    hint = "to: a task name, or previous"
    if do == "jump" and "to" not in then:
        editor.fault(then, "do", Code.MISSING_FIELD, "`do: jump` needs `to`", hint)
    if exhausted == "jump" and "to" not in then:
        editor.fault(then, "exhausted", Code.MISSING_FIELD, "`exhausted: jump` needs `to`", hint)
    _count(then, "attempts", editor)
    has_other_backoff = then.get("backoff") not in (None, "exponential")
    if then.get("multiplier") is not None and has_other_backoff:
        message = "`multiplier` belongs to `backoff: exponential`"
        editor.fault(then, "multiplier", Code.IGNORED_FIELD, message)


def _count(node: Node, key: str, editor: Editor) -> None:
    value = node.get(key)
    number = value
    if isinstance(value, str):
        literal = named(value)
        if literal is None:
            return  # a template computes it
        if not literal.strip().isdigit():
            editor.fault(node, key, Code.BAD_VALUE, f"`{key}` is a number of calls, not {value!r}")
            return
        number = int(literal)
    if isinstance(number, int) and number < 1:
        message = f"`{key}` counts every call, the first included: at least 1, not {number}"
        editor.fault(node, key, Code.BAD_VALUE, message)


def _target(target: Node, kinds: tuple[str, ...], who: str, editor: Editor) -> None:
    """Check where a sink or a transfer writes."""
    kind = named(target.get("kind"))
    if kind is not None and kind not in kinds:
        hint = did_you_mean(kind, kinds) or f"{who} writes to {', '.join(kinds)}"
        editor.fault(target, "kind", Code.UNKNOWN_KIND, f"{who} cannot write to `{kind}`", hint)
    if target.get("mode") == "upsert" and not target.get("key"):
        message = "mode upsert needs `key`: the columns that identify a row"
        editor.fault(target, "mode", Code.UPSERT_WITHOUT_KEY, message, "key: [id]")
    if kind in ("postgres", "duckdb") and not target.get("table"):
        message = f"`table` is missing in the {kind} target"
        editor.fault(target, "kind", Code.MISSING_FIELD, message, "table: schema.name")
    for needed, what in (("http", "url"), ("file", "path"), ("object", "path")):
        if kind == needed and not target.get(what):
            editor.fault(
                target, "kind", Code.MISSING_FIELD, f"`{what}` is missing in the {kind} target"
            )


def _source(task: Node, editor: Editor) -> None:
    source = child(task, "source")
    known = ("kind", "auth", "query", "path", "ref", "format", "database", "params")
    for key in source:
        if key not in known:
            message = f"unknown key `{key}` in the source of a transfer"
            hint = did_you_mean(key, known) or f"known here: {', '.join(known)}"
            editor.fault(source, key, Code.UNKNOWN_KEY, message, hint)
    kind = named(source.get("kind"))
    if kind is not None and kind not in _TRANSFER and "ref" not in source:
        hint = did_you_mean(kind, _TRANSFER) or f"a transfer reads {', '.join(_TRANSFER)}, or `ref`"
        editor.fault(source, "kind", Code.UNKNOWN_KIND, f"a transfer cannot read `{kind}`", hint)
    given = [key for key in _SOURCES if key in source]
    if "kind" not in source and "ref" not in source:
        editor.fault(
            task, "source", Code.MISSING_FIELD, "`kind` is missing in the source of a transfer"
        )
    if len(given) != 1:
        found = ", ".join(given) or "none"
        message = f"the source of a transfer has exactly one of query, path, ref; found {found}"
        editor.fault(task, "source", Code.BAD_VALUE, message)


def _http(task: Node, editor: Editor) -> None:
    method = named(task.get("method"))
    if method is not None and method.upper() not in _METHODS:
        hint = did_you_mean(method.upper(), _METHODS) or ", ".join(sorted(_METHODS))
        editor.fault(task, "method", Code.BAD_VALUE, f"{method!r} is no HTTP method", hint)
    url = named(task.get("url"))
    if url is not None and not re.match(r"(https?|demo)://\S", url):
        hint = "it starts with http:// or https://"
        editor.fault(task, "url", Code.BAD_VALUE, f"{url!r} is no address", hint)
    if task.get("body") is not None and task.get("form") is not None:
        editor.fault(task, "form", Code.BAD_VALUE, "a request has `body` or `form`, not both")


def _child_playbook(task: Node, world: World, editor: Editor) -> None:
    path = named(task.get("path"))
    if path is not None and not path.strip():
        hint = "the path under which the child is registered"
        editor.fault(task, "path", Code.BAD_VALUE, "`path` is empty", hint)
    if task.get("wait") is False and "return_step" in task:
        message = "`return_step` has no effect with `wait: false`"
        editor.fault(
            task, "return_step", Code.IGNORED_FIELD, message, "the value is {execution_id}"
        )


def _output(task: Node, editor: Editor) -> None:
    output = child(task, "output")
    if output.get("kind") == "postgres" and "auth" not in output:
        editor.fault(output, "kind", Code.MISSING_FIELD, "`output: {kind: postgres}` needs `auth`")
    if output.get("mode") == "upsert" and not output.get("key"):
        editor.fault(
            output, "mode", Code.UPSERT_WITHOUT_KEY, "mode upsert needs `key`", "key: [id]"
        )
    if output.get("scope") == "permanent" and output.get("ttl") is not None:
        message = "a permanent result has no `ttl`"
        editor.fault(output, "ttl", Code.BAD_VALUE, message, "leave one of them out")


# ---- keychain ----

_NEEDED = {
    "static": ("map",),
    "env": ("env", "map"),
    "credential": ("credential", "auth"),
    "oauth2": ("url", "auth"),
}


def _keychain(entry: Node, editor: Editor) -> None:
    needed = _NEEDED.get(str(entry.get("kind")), ())
    if needed and not any(key in entry for key in needed):
        keys = " or ".join(f"`{key}`" for key in needed)
        message = f"a keychain entry of kind {entry['kind']} needs {keys}"
        editor.fault(entry, "kind", Code.MISSING_FIELD, message)
