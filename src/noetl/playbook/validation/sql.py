"""SQL with templates: a value is allowed where a literal is, and its quotes need no doubling.

The database judges the statement; only the places of `{{ expressions }}` are checked here.
"""

from collections.abc import Iterator
from typing import Any

from noetl.playbook import outlines, templates
from noetl.playbook.dialect.editor import Editor, Node, maps
from noetl.playbook.expressions import TemplateError
from noetl.playbook.findings import Code, Finding, Severity
from noetl.playbook.outlines import PRIVATE, Outline, Spot, marker
from noetl.playbook.sqlcomments import blank_commented_values
from noetl.playbook.sqlplaces import misplaced
from noetl.playbook.sqltext import (
    LITERALS,
    Dialect,
    Token,
    Unterminated,
    marker_pattern,
    significant,
    split,
    tokens,
)
from noetl.playbook.validation.names import within
from noetl.playbook.validation.shape import every_task
from noetl.playbook.validation.world import World, child, text

_DIALECTS: dict[str, Dialect] = {"postgres": "postgres", "duckdb": "duckdb", "spark": "spark"}
_SQL_KEY = {"postgres": "query", "duckdb": "query", "spark": "sql"}
Found = tuple[Any, str | int, Dialect]
Note = tuple[Spot, Code, str, str, Severity]


def blank_comments(document: Node) -> None:
    """Remove the expressions from the comments of every SQL text: comments have no values."""
    for _, (holder, key, dialect) in _everywhere(document):
        holder[key] = blank_commented_values(holder[key], dialect)


def check(world: World, editor: Editor) -> None:
    for step, found in _everywhere(world.document):
        editor.step = step
        _check(found, world, editor)
    editor.step = None


def _everywhere(document: Node) -> Iterator[tuple[str | None, Found]]:
    """Every SQL text of a playbook that is a template, with its step."""
    for step_name, task in every_task(document):
        for found in _of_task(task):
            yield step_name, found
    for step in maps(document.get("workflow")):
        cursor = child(step, "loop", "cursor")
        dialect = _DIALECTS.get(str(cursor.get("kind")))
        if dialect is not None:
            for found in _texts(cursor, "claim", dialect):
                yield text(step, "step"), found


def _of_task(task: Node) -> Iterator[Found]:
    kind = str(task.get("kind"))
    if kind in _DIALECTS:
        yield from _texts(task, _SQL_KEY[kind], _DIALECTS[kind])
    if kind == "transfer":
        source = child(task, "source")
        dialect = _DIALECTS.get(str(source.get("kind")), "postgres")
        yield from _texts(source, "query", dialect)
    if kind == "spark":
        for given in child(task, "inputs").values():
            if isinstance(given, dict):
                yield from _texts(given, "query", "postgres")


def _texts(holder: Node, key: str, dialect: Dialect) -> Iterator[Found]:
    value = holder.get(key)
    if isinstance(value, str):
        yield holder, key, dialect
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, str):
                yield value, index, dialect


def _check(found: Found, world: World, editor: Editor) -> None:
    holder, key, dialect = found
    source = holder[key]
    if "{{" not in source:
        return
    try:
        template = templates.parse(source)
    except TemplateError:
        return  # `names` has reported it
    notes: dict[Note, None] = {}
    for outline in outlines.outlines(template):
        notes |= dict.fromkeys(_notes(outline, dialect))
    mark = editor.value_mark(holder, key)
    for spot, code, message, hint, severity in notes:
        at = within(mark, world.lines, spot.line, _column(source, spot.line))
        finding = Finding(
            editor.file, at.line, at.column, editor.step, code, message, hint, severity
        )
        editor.findings.append(finding)


def _column(source: str, line: int) -> int:
    line_text = source.split("\n")[line - 1]
    return max(line_text.find("{{"), 0) + 1


def _notes(outline: Outline, dialect: Dialect) -> Iterator[Note]:
    kinds = {marker(number): spot.kind for number, spot in enumerate(outline.spots)}
    try:
        statements = list(split(tokens(outline.text, PRIVATE, dialect)))
    except Unterminated:
        return  # one branch of a template may end within quotes
    for statement in statements:
        for wrong in misplaced(significant(statement), kinds, PRIVATE, dialect):
            spot = _spots(wrong.token, outline)[0]
            message = f"`{{{{ {spot.source} }}}}` in SQL is data: {wrong.message}"
            yield spot, Code.SQL_PLACE, message, wrong.hint, "error"
        for token in statement:
            if token.kind in LITERALS and token.kind != "dollar":
                yield from _doubled(token, outline)


def _doubled(token: Token, outline: Outline) -> Iterator[Note]:
    hint = "a value in SQL is data, whatever is in it"
    for spot in _spots(token, outline):
        if spot.doubles:
            message = f"`{{{{ {spot.source} }}}}`: the quotes of a value need no doubling, and it is left out"
            yield spot, Code.SQL_ESCAPED, message, hint, "warning"


def _spots(token: Token, outline: Outline) -> list[Spot]:
    markers = marker_pattern(PRIVATE).findall(token.text)
    return [outline.spots[int(found.strip(PRIVATE))] for found in markers]
