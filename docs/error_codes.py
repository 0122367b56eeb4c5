"""Collects the error codes of the source and writes the page that describes them.

`error_codes.toml` has the descriptions. A code of the source without a description, and a
description of a code that the source no longer has, fail a unit test.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from noetl.playbook import findings

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "noetl"
DESCRIPTIONS = HERE / "error_codes.toml"
CODE_PATTERN = re.compile(r"[A-Z][A-Z0-9]+(_[A-Z0-9]+)*")
NOT_A_CONSTRUCTOR = "get"  # `cache.get(code)` looks a code up
_ABOUT = """\
Every failure has a `code`, and a code keeps its meaning. You find it in `error.code` of a template, in `noetl exec explain`, in
the answers of the HTTP API (`code` of a problem), and in the output of `--json`.

A **failed task** has an `error` that the playbook can [handle](playbook.md#failure): `{{ error.code == 'TIMEOUT' }}`.
`error.message` says what went wrong in this case, and `error.retryable` whether the same call may succeed later. A **refused
request** changes nothing. The [findings](#findings-of-validation) of `noetl validate` are about the text of a playbook, before
anything runs.
"""


# ---- the codes of the source -------------------------------------------------------------


def collect_codes(source: Path = SOURCE) -> set[str]:
    """The codes of failures and exceptions. Findings are not among them."""
    paths = [path for path in source.rglob("*.py") if path.name != Path(findings.__file__).name]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    positions = _find_code_positions(trees)
    constants = _find_constants(trees)
    codes: set[str] = set()
    for tree in trees:
        for expression in _find_code_expressions(tree, positions):
            codes |= _read_codes(expression, constants)
    return codes


def _find_code_positions(trees: list[ast.Module]) -> dict[str, int]:
    """The position of the argument `code`, by the name of the function or the class."""
    positions: dict[str, int] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [argument.arg for argument in node.args.posonlyargs + node.args.args]
            if "code" in names and node.name not in ("__init__", NOT_A_CONSTRUCTOR):
                positions[node.name] = names.index("code") - (names[0] in ("self", "cls"))
        elif isinstance(node, ast.ClassDef):
            names = _list_constructor_arguments(node)
            if "code" in names:
                positions[node.name] = names.index("code")
    return positions


def _list_constructor_arguments(node: ast.ClassDef) -> list[str]:
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return [argument.arg for argument in member.args.args[1:]]
    return [
        member.target.id
        for member in node.body
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)
    ]


def _find_constants(trees: list[ast.Module]) -> dict[str, str]:
    """Text constants of modules by their names."""
    constants: dict[str, str] = {}
    for statement in (statement for tree in trees for statement in tree.body):
        if not isinstance(statement, ast.Assign):
            continue
        for target, value in _pair_assigned(statement):
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                constants[target] = value.value
    return constants


def _pair_assigned(statement: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """The assigned names with their values. `a, b = 1, 2` has two."""
    for target in statement.targets:
        if isinstance(target, ast.Name):
            yield target.id, statement.value
        elif isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            for name, value in zip(target.elts, statement.value.elts, strict=False):
                if isinstance(name, ast.Name):
                    yield name.id, value


def _find_code_expressions(tree: ast.Module, positions: dict[str, int]) -> Iterator[ast.expr]:
    """The expressions that give a code, wherever the source has one."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="code", value=value):
                yield value
            case ast.Assign():
                yield from (value for name, value in _pair_assigned(node) if _names_code(name))
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "code":
                        yield value
            case ast.Call():
                yield from _find_code_argument(node, positions)
            case ast.arguments():
                yield from _find_code_default(node)


def _names_code(name: str) -> bool:
    return name.lower() in ("code", "codes") or name.lower().endswith("_code")


def _find_code_argument(call: ast.Call, positions: dict[str, int]) -> Iterator[ast.expr]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    position = positions.get(name)
    if name == "getattr" and len(call.args) == 3 and ast.unparse(call.args[1]) == "'code'":
        position = 2
    if position is not None and position < len(call.args):
        yield call.args[position]


def _find_code_default(arguments: ast.arguments) -> Iterator[ast.expr]:
    named = reversed(arguments.posonlyargs + arguments.args)
    for argument, default in zip_longest(named, reversed(arguments.defaults)):
        if argument is not None and argument.arg == "code" and default is not None:
            yield default


def _read_codes(expression: ast.expr, constants: dict[str, str]) -> set[str]:
    """The codes in the expression. `f"HTTP_{status}"` is `HTTP_nnn`."""
    found: set[str] = set()
    if isinstance(expression, ast.JoinedStr):
        beginning = expression.values[0]
        return {f"{beginning.value}nnn"} if isinstance(beginning, ast.Constant) else found
    for node in ast.walk(expression):
        text = None
        if isinstance(node, ast.Constant):
            text = node.value
        elif isinstance(node, ast.Name):
            text = constants.get(node.id)
        if isinstance(text, str) and CODE_PATTERN.fullmatch(text):
            found.add(text)
    return found


# ---- the page ----------------------------------------------------------------------------


def read_descriptions() -> dict[str, dict[str, Any]]:
    """The groups of the page by their titles."""
    groups: dict[str, dict[str, Any]] = tomllib.loads(DESCRIPTIONS.read_text(encoding="utf-8"))
    return groups


def list_described_codes() -> list[str]:
    return [code for group in read_descriptions().values() for code in group["codes"]]


def write_page(mark: str) -> str:
    lines = ["# Error codes", "", mark, "", _ABOUT]
    for title, group in read_descriptions().items():
        lines += [f"## {title}", "", group["about"], "", "| code | means | what to do |"]
        lines += ["|---|---|---|"]
        lines += [
            f"| `{code}` | {means} | {remedy} |" for code, (means, remedy) in group["codes"].items()
        ]
        lines += [""]
    lines += ["## Findings of validation", ""]
    lines += [
        "`noetl validate` and `noetl catalog register` report them with file, line, column and step. An error "
        "refuses the playbook (`PLAYBOOK_INVALID`); a warning and a note do not.",
        "",
        "| code | means |",
        "|---|---|",
    ]
    lines += [f"| `{code}` | {code.description} |" for code in findings.Code]
    return "\n".join(lines) + "\n"
