"""Code inside playbooks: Python must compile, and Spark settings must be allowed."""

import ast
import re
import warnings
from typing import Any

from noetl.playbook.dialect.editor import Editor, Node
from noetl.playbook.findings import Code, Finding
from noetl.playbook.validation.document_facts import DocumentFacts, get_child, get_text
from noetl.playbook.validation.names import locate_within
from noetl.playbook.validation.shape import iterate_tasks

ALLOWED_CONF = re.compile(
    r"spark\.sql\.(?!extensions$|catalog\.|warehouse\.|hive\.|sources\.(commitProtocolClass|outputCommitterClass)"
    r"|parquet\.output\.committer|streaming\.|artifact|queryExecutionListeners|.*[cC]ommit).+"
    r"|spark\.default\.parallelism|spark\.scheduler\.pool|spark\.task\.(cpus|maxFailures)|spark\.speculation"
)
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}|\{%")


def check(world: DocumentFacts, editor: Editor) -> None:
    for step, task in iterate_tasks(world.document):
        editor.step = step
        if task.get("kind") in ("python", "spark") and get_text(task, "code") is not None:
            _check_python(task, world, editor)
        if task.get("kind") == "spark":
            _check_conf(task, editor)
    editor.step = None


def _check_python(task: Node, world: DocumentFacts, editor: Editor) -> None:
    source = task["code"]
    mark = editor.get_value_mark(task, "code")
    template = _TEMPLATE.search(source)
    problem = syntax_problem(source)
    if problem is not None:
        line, column, message = problem
        at = locate_within(mark, world.lines, line, column)
        hint = None
        if template is not None:
            hint = "`{{ }}` is not rendered in code: use `input`"
        message = f"Python: {message}"
        finding = Finding(
            editor.file, at.line, at.column, editor.step, Code.PYTHON_SYNTAX, message, hint
        )
        editor.findings.append(finding)
    elif template is not None:
        start = template.start()
        line = source.count("\n", 0, start) + 1
        at = locate_within(mark, world.lines, line, start - source.rfind("\n", 0, start))
        message = "`{{ }}` in code is not rendered"
        hint = 'pass the value: `input: {x: "{{ … }}"}`, then use `x` in the code'
        finding = Finding(
            editor.file,
            at.line,
            at.column,
            editor.step,
            Code.TEMPLATE_IN_CODE,
            message,
            hint,
            "warning",
        )
        editor.findings.append(finding)


def syntax_problem(source: str) -> tuple[int, int, str] | None:
    """(line, column, message) of an error that keeps the code from compiling. `return` and `await`
    at the top level are allowed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(source)
            if not _imports_all(module):
                compile(_wrap_in_function(module), "<code>", "exec", dont_inherit=True)
    except SyntaxError as exc:
        return exc.lineno or 1, exc.offset or 1, exc.msg
    except (ValueError, RecursionError, MemoryError) as exc:
        return 1, 1, str(exc) or "the code is nested too deeply"
    return None


def _imports_all(module: ast.Module) -> bool:
    """`from x import *` compiles at the top level only."""
    imports = [node for node in ast.walk(module) if isinstance(node, ast.ImportFrom)]
    return any(alias.name == "*" for node in imports for alias in node.names)


def _wrap_in_function(module: ast.Module) -> ast.Module:
    """The code as the body of an async function, which may return and await."""
    future: list[ast.stmt] = []
    body: list[ast.stmt] = []
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            future.append(node)
        else:
            body.append(node)
    no_arguments: Any = ast.arguments(
        posonlyargs=[],
        args=[],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    function = ast.AsyncFunctionDef(
        name="main",
        args=no_arguments,
        body=body or [ast.Pass()],
        decorator_list=[],
    )
    wrapped = ast.Module(body=[*future, function], type_ignores=[])
    return ast.fix_missing_locations(wrapped)


def _check_conf(task: Node, editor: Editor) -> None:
    conf = get_child(task, "conf")
    for key in conf:
        if not ALLOWED_CONF.fullmatch(key):
            message = f"`{key}` may not be changed by a playbook"
            hint = "allowed: spark.sql.* (except extensions, catalogs and committers), spark.default.parallelism"
            editor.add_error(
                conf, key, Code.FORBIDDEN_CONF, message, f"{hint}; the rest belongs to the profile"
            )
