"""What goes into a spark step and what comes out of it, as far as the playbook says it.

A mapping under an input is a description, never data: with a key that nobody knows it would become a row. What a template gives
is data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from noetl.playbook.dialect.editor import Editor, Node, maps
from noetl.playbook.findings import Code
from noetl.playbook.validation.shape import did_you_mean, every_task
from noetl.playbook.validation.world import World, child, named

INPUT = (
    "kind",
    "auth",
    "query",
    "database",
    "format",
    "path",
    "table",
    "columns",
    "options",
    "partition",
)
PARTITION = ("column", "count")
EXPECTATION = ("sql", "name", "on_fail")
ON_FAIL = ("fail", "drop", "warn")
_SOURCES = ("path", "table", "query")
_KIND = "postgres"  # the only one there is, of inputs and of outputs
_SESSION = "spark"
PATH_MODES = ("overwrite", "append", "error", "ignore", "overwrite_partitions")
TABLE_MODES = (
    "insert",
    "append",
    "upsert",
    "replace",
    "overwrite",
    "error",
    "ignore",
    "overwrite_partitions",
)


def check(world: World, editor: Editor) -> None:
    for step, task in every_task(world.document):
        if task.get("kind") == "spark":
            editor.step = step
            _inputs(child(task, "inputs"), editor)
            _output(child(task, "output"), editor)
            for check in maps(task.get("expect")):
                _expectation(check, editor)
    editor.step = None


def _expectation(check: Node, editor: Editor) -> None:
    for key in check:
        if key not in EXPECTATION:
            hint = did_you_mean(key, EXPECTATION) or f"known here: {', '.join(EXPECTATION)}"
            editor.fault(check, key, Code.UNKNOWN_KEY, f"unknown key `{key}` in `expect`", hint)
    if not isinstance(check.get("sql"), str):
        editor.fault(
            check,
            None,
            Code.MISSING_FIELD,
            "an expectation needs `sql`: a condition that every row meets",
        )
    given = check.get("on_fail", "fail")
    if named(given) is None and isinstance(given, str):
        message = "`on_fail` cannot be computed"
        editor.fault(check, "on_fail", Code.BAD_VALUE, message, f"one of {', '.join(ON_FAIL)}")
    elif given not in ON_FAIL:
        hint = did_you_mean(str(given), ON_FAIL) or f"one of {', '.join(ON_FAIL)}"
        editor.fault(check, "on_fail", Code.BAD_VALUE, f"`on_fail: {given}` is not known", hint)


def _inputs(inputs: Node, editor: Editor) -> None:
    for name, given in inputs.items():
        if not name.isidentifier():
            message = f"input `{name}`: its name must be one that SQL and Python take"
            editor.fault(inputs, name, Code.BAD_NAME, message, "letters, digits and _")
        elif name == _SESSION:
            editor.fault(
                inputs,
                name,
                Code.BAD_NAME,
                "`spark` is the session; no input has its name",
                "name it otherwise",
            )
        if isinstance(given, dict):
            _described(inputs, name, given, editor)


def _described(inputs: Node, name: str, given: Node, editor: Editor) -> None:
    unknown = [key for key in given if key not in INPUT]
    for key in unknown:
        hint = (
            did_you_mean(key, INPUT) or f"known here: {', '.join(INPUT)}; data comes by a template"
        )
        editor.fault(given, key, Code.UNKNOWN_KEY, f"unknown key `{key}` in input `{name}`", hint)
    _partition(given, name, editor)
    _kind(given, f"input `{name}`", "without a kind: `path`, or `table` of Spark's catalog", editor)
    sources = [key for key in _SOURCES if key in given]
    if len(sources) != 1 and not unknown:
        message = f"input `{name}` has exactly one of path, table, query; found {', '.join(sources) or 'none'}"
        editor.fault(inputs, name, Code.BAD_VALUE, message)
    elif sources == ["query"] and "kind" not in given:
        editor.fault(
            inputs, name, Code.MISSING_FIELD, f"the query of input `{name}` needs `kind: {_KIND}`"
        )
    elif sources == ["path"] and "kind" in given:
        message = f"input `{name}`: `kind` has no effect on a path"
        editor.fault(given, "kind", Code.IGNORED_FIELD, message, "`format` says what its files are")


def _partition(given: Node, name: str, editor: Editor) -> None:
    if "partition" not in given:
        return
    wanted = child(given, "partition")
    count = wanted.get("count")
    if set(wanted) != set(PARTITION) or not (isinstance(count, str) or _positive(count)):
        message = f"`partition` of input `{name}` says `column` and `count`, a number of parts"
        editor.fault(
            given, "partition", Code.BAD_VALUE, message, "partition: {column: id, count: 8}"
        )


def _positive(count: object) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and count > 0


@dataclass(frozen=True, slots=True)
class OutputProblem:
    key: str  # of the output
    code: Code
    message: str
    hint: str | None = None


def _output(output: Node, editor: Editor) -> None:
    _kind(output, "`output`", "without a kind: `path` with a `format`", editor)
    if output.get("table") and "kind" not in output:
        editor.fault(
            output, "table", Code.MISSING_FIELD, f"`output: {{table: …}}` needs `kind: {_KIND}`"
        )
    elif (
        named(output.get("kind")) in (_KIND, None)
        and (problem := output_problem(output)) is not None
    ):
        if problem.code == Code.UPSERT_WITHOUT_KEY:
            return  # of every kind of tool, so `values.py` reports it
        key = problem.key if problem.key in output else next(iter(output))
        editor.fault(output, key, problem.code, f"`output`: {problem.message}", problem.hint)


def output_problem(output: Mapping[str, Any]) -> OutputProblem | None:
    """Why these fields cannot be written together; None when they can, or when a template says what they are."""
    if (kind := output.get("kind")) not in (None, _KIND) and named(kind) is not None:
        return OutputProblem(
            "kind", Code.UNKNOWN_KIND, f"unknown kind {kind!r}: the only one is {_KIND}"
        )
    if output.get("path") and kind is not None:
        hint = "a step writes to one place: leave one of them out"
        return OutputProblem("path", Code.BAD_VALUE, "`path` and `kind` name two places", hint)
    if not output.get("path") and kind is None:
        return _without_place(output)
    if output.get("path"):
        return _mode_problem(output, PATH_MODES, "a path")
    if not output.get("table"):
        return OutputProblem("table", Code.MISSING_FIELD, f"kind {_KIND} needs `table`")
    return _mode_problem(output, TABLE_MODES, "a table")


def _without_place(output: Mapping[str, Any]) -> OutputProblem | None:
    """The rows are the step's result, which is always new."""
    if (key := next((key for key in ("mode", "key", "options") if output.get(key)), None)) is None:
        return None
    hint = "without them the rows are the step's result"
    return OutputProblem(key, Code.IGNORED_FIELD, f"`{key}` is for a `path` or a `table`", hint)


def _mode_problem(
    output: Mapping[str, Any], modes: tuple[str, ...], place: str
) -> OutputProblem | None:
    mode = output.get("mode")
    if mode is not None and named(mode) is None:
        return None
    if mode is not None and mode not in modes:
        hint = (
            "upsert is for a table: overwrite_partitions replaces parts of a path"
            if mode == "upsert"
            else None
        )
        message = f"mode {mode!r} is not one of {', '.join(modes)}, which {place} knows"
        return OutputProblem(
            "mode", Code.BAD_VALUE, message, hint or did_you_mean(str(mode), modes)
        )
    if mode == "upsert" and not output.get("key"):
        return OutputProblem(
            "mode", Code.UPSERT_WITHOUT_KEY, "mode upsert needs `key`", "key: [id]"
        )
    if mode != "upsert" and output.get("key"):
        return OutputProblem(
            "key", Code.IGNORED_FIELD, "`key` has no effect in this mode", "mode: upsert uses it"
        )
    if mode == "overwrite_partitions" and not output.get("partition_by"):
        message = "mode overwrite_partitions needs `partition_by`, the columns whose values say what is replaced"
        return OutputProblem("mode", Code.MISSING_FIELD, message, "partition_by: [day]")
    if modes == TABLE_MODES and output.get("partition_by") and mode != "overwrite_partitions":
        message = "`partition_by` has no effect on a table in this mode"
        return OutputProblem(
            "partition_by", Code.IGNORED_FIELD, message, "mode: overwrite_partitions uses it"
        )
    return None


def _kind(node: Node, where: str, otherwise: str, editor: Editor) -> None:
    kind = named(node.get("kind"))
    if kind is not None and kind != _KIND:
        message = f"unknown kind `{kind}` in {where}: the only one is {_KIND}"
        editor.fault(node, "kind", Code.UNKNOWN_KIND, message, otherwise)
