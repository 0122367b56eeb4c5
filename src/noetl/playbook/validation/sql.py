"""SQL with templates: a value is allowed where a literal is, and its quotes need no doubling.

The database judges the statement; only the places of `{{ expressions }}` are checked here.
"""

from collections.abc import Iterator
from typing import Any

from noetl.playbook import outlines
from noetl.playbook.dialect.editor import Editor, Node, list_maps
from noetl.playbook.findings import Code, Finding, Severity
from noetl.playbook.outlines import MARKER_CHARACTER, Outline, OutlineSpot, make_marker
from noetl.playbook.sqlcomments import blank_commented_values
from noetl.playbook.sqlplaces import find_misplaced
from noetl.playbook.sqltext import (
    LITERALS,
    Dialect,
    Token,
    UnterminatedSql,
    drop_comments,
    marker_pattern,
    split_statements,
    tokenize_sql,
)
from noetl.playbook.validation.document_facts import DocumentFacts, get_child, get_text
from noetl.playbook.validation.names import locate_within
from noetl.playbook.validation.shape import iterate_tasks
from noetl.template.errors import TemplateError
from noetl.template.parsing import parse

_DIALECTS: dict[str, Dialect] = {"postgres": "postgres", "duckdb": "duckdb", "spark": "spark"}
_SQL_KEY = {"postgres": "query", "duckdb": "query", "spark": "sql"}
SqlText = tuple[Any, str | int, Dialect]
SqlNote = tuple[OutlineSpot, Code, str, str, Severity]


def blank_comments(document: Node) -> None:
    """Remove the expressions from the comments of every SQL text: comments have no values."""
    for _, (holder, key, dialect) in find_sql_texts(document):
        holder[key] = blank_commented_values(holder[key], dialect)


def check(world: DocumentFacts, editor: Editor) -> None:
    for step, found in find_sql_texts(world.document):
        editor.step = step
        _check_sql_text(found, world, editor)
    editor.step = None


def find_sql_texts(document: Node) -> Iterator[tuple[str | None, SqlText]]:
    """Every SQL text of a playbook that is a template, with its step."""
    for step_name, task in iterate_tasks(document):
        for found in _find_task_texts(task):
            yield step_name, found
    for step in list_maps(document.get("workflow")):
        cursor = get_child(step, "loop", "cursor")
        dialect = _DIALECTS.get(str(cursor.get("kind")))
        if dialect is not None:
            for found in _find_texts(cursor, "claim", dialect):
                yield get_text(step, "step"), found


def _find_task_texts(task: Node) -> Iterator[SqlText]:
    kind = str(task.get("kind"))
    if kind in _DIALECTS:
        yield from _find_texts(task, _SQL_KEY[kind], _DIALECTS[kind])
    if kind == "transfer":
        source = get_child(task, "source")
        dialect = _DIALECTS.get(str(source.get("kind")), "postgres")
        yield from _find_texts(source, "query", dialect)
    if kind == "spark":
        for given in get_child(task, "inputs").values():
            if isinstance(given, dict):
                yield from _find_texts(given, "query", "postgres")


def _find_texts(holder: Node, key: str, dialect: Dialect) -> Iterator[SqlText]:
    value = holder.get(key)
    if isinstance(value, str):
        yield holder, key, dialect
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, str):
                yield value, index, dialect


def _check_sql_text(found: SqlText, world: DocumentFacts, editor: Editor) -> None:
    holder, key, dialect = found
    source = holder[key]
    if "{{" not in source:
        return
    try:
        template = parse(source)
    except TemplateError:
        return  # `names` has reported it
    notes: dict[SqlNote, None] = {}
    for outline in outlines.make_outlines(template):
        notes |= dict.fromkeys(_find_notes(outline, dialect))
    mark = editor.get_value_mark(holder, key)
    for spot, code, message, hint, severity in notes:
        at = locate_within(mark, world.lines, spot.line, find_column(source, spot.line))
        finding = Finding(
            editor.file, at.line, at.column, editor.step, code, message, hint, severity
        )
        editor.findings.append(finding)


def find_column(source: str, line: int) -> int:
    line_text = source.split("\n")[line - 1]
    return max(line_text.find("{{"), 0) + 1


def _find_notes(outline: Outline, dialect: Dialect) -> Iterator[SqlNote]:
    kinds = {make_marker(number): spot.kind for number, spot in enumerate(outline.spots)}
    try:
        statements = list(split_statements(tokenize_sql(outline.text, MARKER_CHARACTER, dialect)))
    except UnterminatedSql:
        return  # one branch of a template may end within quotes
    for statement in statements:
        for wrong in find_misplaced(drop_comments(statement), kinds, MARKER_CHARACTER, dialect):
            spot = find_spots(wrong.token, outline)[0]
            message = f"`{{{{ {spot.source} }}}}` in SQL is data: {wrong.message}"
            yield spot, Code.SQL_PLACE, message, wrong.hint, "error"
        for token in statement:
            if token.kind in LITERALS and token.kind != "dollar":
                yield from _find_doubled_quotes(token, outline)


def _find_doubled_quotes(token: Token, outline: Outline) -> Iterator[SqlNote]:
    hint = "a value in SQL is data; quotes in it need no escaping"
    for spot in find_spots(token, outline):
        if spot.doubles:
            message = f"`{{{{ {spot.source} }}}}`: the quotes of a value need no doubling, and it is left out"
            yield spot, Code.SQL_ESCAPED, message, hint, "warning"


def find_spots(token: Token, outline: Outline) -> list[OutlineSpot]:
    markers = marker_pattern(MARKER_CHARACTER).findall(token.text)
    return [outline.spots[int(found.strip(MARKER_CHARACTER))] for found in markers]
