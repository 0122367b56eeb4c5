"""Comments and docstrings name classes that exist, so that a reader can find them."""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import noetl

SOURCE = Path(noetl.__file__).parent
NAMED = re.compile(r"`([A-Za-z_][\w.]*)`")
CAMEL_CASE = re.compile(r"_?[A-Z]\w*[a-z]\w*")
COMMENT = re.compile(r"#.*")
HTTP_HEADERS = frozenset({"ETag", "Link", "Range"})


def list_docstrings(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node, clean=False) or ""


def list_code_names(nodes: list[ast.AST]) -> Iterator[str]:
    """The names that a module defines, imports or uses."""
    for node in nodes:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                yield name.rpartition(".")[2]


def find_unknown_names(modules: dict[str, str]) -> list[str]:
    known = {*dir(builtins), *HTTP_HEADERS}
    mentioned: list[tuple[str, str]] = []
    for module, source in modules.items():
        nodes = list(ast.walk(ast.parse(source)))
        known.update(list_code_names(nodes))
        for text in (*list_docstrings(nodes), *COMMENT.findall(source)):
            mentioned += [(module, name) for name in NAMED.findall(text)]
    unknown: list[str] = []
    for module, name in mentioned:
        classes = [part for part in name.split(".") if CAMEL_CASE.fullmatch(part)]
        if not known.issuperset(classes):
            unknown.append(f"{module}: `{name}`")
    return unknown


def test_comments_name_classes_that_exist() -> None:
    modules = {str(file.relative_to(SOURCE)): file.read_text() for file in SOURCE.rglob("*.py")}
    assert find_unknown_names(modules) == []


def test_an_unknown_class_in_a_comment_is_found() -> None:
    source = '"""A `rows.Reader` of a `RowSet`."""\nclass RowSet: ...  # or a `Table`\n'
    assert find_unknown_names({"m.py": source}) == ["m.py: `rows.Reader`", "m.py: `Table`"]
