"""The inputs and the output of a spark step, as far as the playbook declares them.

A mapping under an input is a description, never data: an unknown key would otherwise become a row.
The result of a template is data.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from noetl.playbook.dialect.editor import Editor, Node, list_maps
from noetl.playbook.findings import Code
from noetl.playbook.validation.document_facts import DocumentFacts, get_child, get_literal
from noetl.playbook.validation.shape import did_you_mean, iterate_tasks

INPUT_KEYS = (
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
PARTITION_KEYS = ("column", "count")
EXPECTATION_KEYS = ("sql", "name", "on_fail")
ON_FAIL_CHOICES = ("fail", "drop", "warn")
_SOURCES = ("path", "table", "query")
_KIND = "postgres"  # the only kind of inputs and outputs
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


def check(world: DocumentFacts, editor: Editor) -> None:
    for step, task in iterate_tasks(world.document):
        if task.get("kind") == "spark":
            editor.step = step
            _check_inputs(get_child(task, "inputs"), editor)
            _check_output(get_child(task, "output"), editor)
            for expectation in list_maps(task.get("expect")):
                _check_expectation(expectation, editor)
    editor.step = None


def _check_expectation(node: Node, editor: Editor) -> None:
    for key in node:
        if key not in EXPECTATION_KEYS:
            hint = (
                did_you_mean(key, EXPECTATION_KEYS) or f"known here: {', '.join(EXPECTATION_KEYS)}"
            )
            editor.add_error(node, key, Code.UNKNOWN_KEY, f"unknown key `{key}` in `expect`", hint)
    if not isinstance(node.get("sql"), str):
        message = "an expectation needs `sql`: a condition that every row meets"
        editor.add_error(node, None, Code.MISSING_FIELD, message)
    choices = f"one of {', '.join(ON_FAIL_CHOICES)}"
    given = node.get("on_fail", "fail")
    if get_literal(given) is None and isinstance(given, str):
        editor.add_error(node, "on_fail", Code.BAD_VALUE, "`on_fail` cannot be computed", choices)
    elif given not in ON_FAIL_CHOICES:
        hint = did_you_mean(str(given), ON_FAIL_CHOICES) or choices
        editor.add_error(node, "on_fail", Code.BAD_VALUE, f"`on_fail: {given}` is not known", hint)


def _check_inputs(inputs: Node, editor: Editor) -> None:
    for name, given in inputs.items():
        if not name.isidentifier():
            message = f"input `{name}`: its name must be one that SQL and Python take"
            editor.add_error(inputs, name, Code.BAD_NAME, message, "letters, digits and _")
        elif name == _SESSION:
            message = "`spark` is the session; no input has its name"
            editor.add_error(inputs, name, Code.BAD_NAME, message, "name it otherwise")
        if isinstance(given, dict):
            _check_described_input(inputs, name, given, editor)


def _check_described_input(inputs: Node, name: str, given: Node, editor: Editor) -> None:
    unknown = [key for key in given if key not in INPUT_KEYS]
    for key in unknown:
        known = f"known here: {', '.join(INPUT_KEYS)}; data comes by a template"
        hint = did_you_mean(key, INPUT_KEYS) or known
        editor.add_error(
            given, key, Code.UNKNOWN_KEY, f"unknown key `{key}` in input `{name}`", hint
        )
    _check_partition(given, name, editor)
    _check_kind(
        given, f"input `{name}`", "without a kind: `path`, or `table` of Spark's catalog", editor
    )
    sources = [key for key in _SOURCES if key in given]
    if len(sources) != 1 and not unknown:
        found = ", ".join(sources) or "none"
        message = f"input `{name}` has exactly one of path, table, query; found {found}"
        editor.add_error(inputs, name, Code.BAD_VALUE, message)
    elif sources == ["query"] and "kind" not in given:
        message = f"the query of input `{name}` needs `kind: {_KIND}`"
        editor.add_error(inputs, name, Code.MISSING_FIELD, message)
    elif sources == ["path"] and "kind" in given:
        message = f"input `{name}`: `kind` has no effect on a path"
        editor.add_error(
            given, "kind", Code.IGNORED_FIELD, message, "`format` says what its files are"
        )


def _check_partition(given: Node, name: str, editor: Editor) -> None:
    if "partition" not in given:
        return
    partition = get_child(given, "partition")
    count = partition.get("count")
    is_count = isinstance(count, str) or _is_positive(count)
    if set(partition) != set(PARTITION_KEYS) or not is_count:
        message = f"`partition` of input `{name}` says `column` and `count`, a number of parts"
        hint = "partition: {column: id, count: 8}"
        editor.add_error(given, "partition", Code.BAD_VALUE, message, hint)


def _is_positive(count: object) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and count > 0


class OutputProblem(Struct, frozen=True):
    key: str  # of the output
    code: Code
    message: str
    hint: str | None = None


def _check_output(output: Node, editor: Editor) -> None:
    _check_kind(output, "`output`", "without a kind: `path` with a `format`", editor)
    if output.get("table") and "kind" not in output:
        message = f"`output: {{table: …}}` needs `kind: {_KIND}`"
        editor.add_error(output, "table", Code.MISSING_FIELD, message)
        return
    if get_literal(output.get("kind")) not in (_KIND, None):
        return
    problem = find_output_problem(output)
    if problem is None or problem.code == Code.UPSERT_WITHOUT_KEY:
        return  # `values.py` reports a missing key, for every kind of tool
    key = problem.key if problem.key in output else next(iter(output))
    editor.add_error(output, key, problem.code, f"`output`: {problem.message}", problem.hint)


def find_output_problem(output: Mapping[str, Any]) -> OutputProblem | None:
    """Why these fields cannot be written together; None if they can, or if a template decides."""
    kind = output.get("kind")
    if kind not in (None, _KIND) and get_literal(kind) is not None:
        message = f"unknown kind {kind!r}: the only one is {_KIND}"
        return OutputProblem("kind", Code.UNKNOWN_KIND, message)
    if output.get("path") and kind is not None:
        hint = "a step writes to one place: leave one of them out"
        return OutputProblem("path", Code.BAD_VALUE, "`path` and `kind` name two places", hint)
    if not output.get("path") and kind is None:
        return _find_ignored_field(output)
    if output.get("path"):
        return _find_mode_problem(output, PATH_MODES, "a path")
    if not output.get("table"):
        return OutputProblem("table", Code.MISSING_FIELD, f"kind {_KIND} needs `table`")
    return _find_mode_problem(output, TABLE_MODES, "a table")


def _find_ignored_field(output: Mapping[str, Any]) -> OutputProblem | None:
    """Without a place, the rows are the step's result, which is always new."""
    for key in ("mode", "key", "options"):
        if output.get(key):
            message = f"`{key}` is for a `path` or a `table`"
            hint = "without them the rows are the step's result"
            return OutputProblem(key, Code.IGNORED_FIELD, message, hint)
    return None


def _find_mode_problem(
    output: Mapping[str, Any], modes: tuple[str, ...], place: str
) -> OutputProblem | None:
    mode = output.get("mode")
    if mode is not None and get_literal(mode) is None:
        return None
    if mode is not None and mode not in modes:
        hint = did_you_mean(str(mode), modes)
        if mode == "upsert":
            hint = "upsert is for a table: overwrite_partitions replaces parts of a path"
        message = f"mode {mode!r} is not one of {', '.join(modes)}, which {place} knows"
        return OutputProblem("mode", Code.BAD_VALUE, message, hint)
    if mode == "upsert" and not output.get("key"):
        message = "mode upsert needs `key`"
        return OutputProblem("mode", Code.UPSERT_WITHOUT_KEY, message, "key: [id]")
    if mode != "upsert" and output.get("key"):
        message = "`key` has no effect in this mode"
        return OutputProblem("key", Code.IGNORED_FIELD, message, "mode: upsert uses it")
    partition_by = output.get("partition_by")
    if mode == "overwrite_partitions" and not partition_by:
        message = "mode overwrite_partitions needs `partition_by`, the columns whose values say what is replaced"
        return OutputProblem("mode", Code.MISSING_FIELD, message, "partition_by: [day]")
    if modes == TABLE_MODES and partition_by and mode != "overwrite_partitions":
        message = "`partition_by` has no effect on a table in this mode"
        hint = "mode: overwrite_partitions uses it"
        return OutputProblem("partition_by", Code.IGNORED_FIELD, message, hint)
    return None


def _check_kind(node: Node, where: str, otherwise: str, editor: Editor) -> None:
    kind = get_literal(node.get("kind"))
    if kind is not None and kind != _KIND:
        message = f"unknown kind `{kind}` in {where}: the only one is {_KIND}"
        editor.add_error(node, "kind", Code.UNKNOWN_KIND, message, otherwise)
