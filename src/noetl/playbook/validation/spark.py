"""What goes into a spark step and what comes out of it, as far as the playbook says it.

A mapping under an input is a description, never data: with a key that nobody knows it would become a row. What a template gives
is data.
"""

from noetl.playbook.dialect.editor import Editor, Node
from noetl.playbook.findings import Code
from noetl.playbook.validation.shape import did_you_mean, every_task
from noetl.playbook.validation.world import World, child, named

INPUT = ("kind", "auth", "query", "database", "format", "path", "table", "columns", "options", "partition")
PARTITION = ("column", "count")
_SOURCES = ("path", "table", "query")
_KIND = "postgres"  # the only one there is, of inputs and of outputs
_SESSION = "spark"


def check(world: World, editor: Editor) -> None:
    for step, task in every_task(world.document):
        if task.get("kind") == "spark":
            editor.step = step
            _inputs(child(task, "inputs"), editor)
            _output(child(task, "output"), editor)
    editor.step = None


def _inputs(inputs: Node, editor: Editor) -> None:
    for name, given in inputs.items():
        if not name.isidentifier():
            message = f"input `{name}`: its name must be one that SQL and Python take"
            editor.fault(inputs, name, Code.BAD_NAME, message, "letters, digits and _")
        elif name == _SESSION:
            editor.fault(
                inputs, name, Code.BAD_NAME, "`spark` is the session; no input has its name", "name it otherwise"
            )
        if isinstance(given, dict):
            _described(inputs, name, given, editor)


def _described(inputs: Node, name: str, given: Node, editor: Editor) -> None:
    unknown = [key for key in given if key not in INPUT]
    for key in unknown:
        hint = did_you_mean(key, INPUT) or f"known here: {', '.join(INPUT)}; data comes by a template"
        editor.fault(given, key, Code.UNKNOWN_KEY, f"unknown key `{key}` in input `{name}`", hint)
    _partition(given, name, editor)
    _kind(given, f"input `{name}`", "without a kind: `path`, or `table` of Spark's catalog", editor)
    sources = [key for key in _SOURCES if key in given]
    if len(sources) != 1 and not unknown:
        message = f"input `{name}` has exactly one of path, table, query; found {', '.join(sources) or 'none'}"
        editor.fault(inputs, name, Code.BAD_VALUE, message)
    elif sources == ["query"] and "kind" not in given:
        editor.fault(inputs, name, Code.MISSING_FIELD, f"the query of input `{name}` needs `kind: {_KIND}`")
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
        editor.fault(given, "partition", Code.BAD_VALUE, message, "partition: {column: id, count: 8}")


def _positive(count: object) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and count > 0


def _output(output: Node, editor: Editor) -> None:
    _kind(output, "`output`", "without a kind: `path` with a `format`", editor)
    if output.get("table") and "kind" not in output:
        editor.fault(output, "table", Code.MISSING_FIELD, f"`output: {{table: …}}` needs `kind: {_KIND}`")


def _kind(node: Node, where: str, otherwise: str, editor: Editor) -> None:
    kind = named(node.get("kind"))
    if kind is not None and kind != _KIND:
        message = f"unknown kind `{kind}` in {where}: the only one is {_KIND}"
        editor.fault(node, "kind", Code.UNKNOWN_KIND, message, otherwise)
