"""Parses templates with Jinja2's parser. Parsed templates are cached.

A text that is exactly one `{{ expression }}` (surrounding white space ignored) yields the value of
that expression; any other template yields text. A text without `{{`, `{%` or `{#` yields itself.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

import jinja2
from jinja2 import nodes
from jinja2.parser import Parser

from noetl.template.errors import LimitError, TemplateError, TemplateSyntaxError
from noetl.template.expressions import ExpressionCompiler
from noetl.template.model import Selection, Template
from noetl.template.statements import StatementCompiler
from noetl.template.values import Value

_SYNTAX = jinja2.Environment(keep_trailing_newline=True)  # noqa: S701 - it parses, it never renders
_TAG = re.compile(r"\{[{%#]")
_MAX_DIGITS = 1_000
_LONG_NUMBER = re.compile(rf"[0-9_]{{{_MAX_DIGITS}}}")  # the lexer would try each of its parts
_MAX_TEMPLATE_CHARACTERS = 1_000_000
_MAX_TEMPLATE_TOKENS = 10_000  # names, numbers, texts and signs: 0.1 s to parse and compile
_MAX_TREE_DEPTH = 100
_MAX_BRACKET_DEPTH = 32
_MAX_SHORT_CHARACTERS = 256
_MAX_MEDIUM_CHARACTERS = 4_096


def has_tag(source: str) -> bool:
    """Whether the text is more than literal text."""
    return _TAG.search(source) is not None


def parse(source: str) -> Template:
    if _TAG.search(source) is None:
        return Template(source)
    if len(source) <= _MAX_SHORT_CHARACTERS:
        return _parse_short(source)
    if len(source) <= _MAX_MEDIUM_CHARACTERS:
        return _parse_medium(source)
    return _parse_long(source)


def parse_expression(source: str) -> Template:
    """Parse an expression that is written without braces, such as the source of a selection."""
    return parse("{{ " + source + " }}")


def _parse_uncached(source: str) -> Template:
    try:
        parsed_tree = parse_tree(source)
        return compile_tree(source, parsed_tree)
    except TemplateError as exc:
        _locate_syntax_error(exc, source)
        raise


# A tree takes about a hundred times the memory of its text, and authors choose the texts. So all
# caches are bounded, and longer texts have smaller ones.
_parse_short = lru_cache(maxsize=4096)(_parse_uncached)
_parse_medium = lru_cache(maxsize=256)(_parse_uncached)
_parse_long = lru_cache(maxsize=16)(_parse_uncached)


def parse_tree(source: str) -> nodes.Template:
    """Parse the source into a new syntax tree. Callers may change it, because it is not cached."""
    if len(source) > _MAX_TEMPLATE_CHARACTERS:
        raise LimitError(f"the template is longer than {_MAX_TEMPLATE_CHARACTERS} characters")
    if _LONG_NUMBER.search(source) is not None:
        raise LimitError(f"the template has a number of more than {_MAX_DIGITS} digits", line=1)
    try:
        _check_tokens(source)
        return Parser(_SYNTAX, source).parse()
    except jinja2.TemplateSyntaxError as exc:
        raise TemplateSyntaxError(
            exc.message or "not a template", hint=_make_syntax_hint(exc), line=exc.lineno
        ) from None
    except RecursionError:
        raise LimitError("the template is nested too deeply") from None
    except ValueError as exc:  # a number with thousands of digits
        raise TemplateSyntaxError(f"not a template: {exc}") from None


def tokenize_template(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, kind, text) of each token, without the white space that the template strips."""
    yield from _SYNTAX.lexer.tokeniter(source, None)


def _check_tokens(source: str) -> None:
    """Refuse too many tokens, and deeply nested brackets: the parser recurses for each bracket."""
    depth = 0
    count = 0
    for line, kind, operator in tokenize_template(source):
        if kind != "whitespace":
            count += 1
            if count > _MAX_TEMPLATE_TOKENS:
                raise LimitError(
                    f"the template has more than {_MAX_TEMPLATE_TOKENS} words and signs", line=line
                )
        if kind != "operator":
            continue
        if operator in "([{":
            depth += 1
        elif operator in ")]}":
            depth -= 1
        if depth > _MAX_BRACKET_DEPTH:
            raise LimitError(f"brackets are nested more than {_MAX_BRACKET_DEPTH} deep")


def _make_syntax_hint(exc: jinja2.TemplateSyntaxError) -> str | None:
    message = exc.message or ""
    if "got '='" in message:
        return "compare with =="
    if (
        "unexpected '}'" in message
        or "unexpected end of template" in message
        or "Unexpected end of template" in message
    ):
        return (
            "an expression ends with }}, a statement with %}, and if and for with endif and endfor"
        )
    if "unexpected char '&'" in message or "unexpected char '!'" in message:
        return "write and, or, not"
    if "unexpected '|'" in message:
        return "write or"
    if "'&'" in message:
        return "write and"
    return None


def _locate_syntax_error(exc: TemplateError, source: str) -> None:
    """Set the line and column of a parse error, as exactly as its message allows."""
    exc.template = source
    lines = source.split("\n")
    offset = re.search(r" at (\d+)$", exc.message)
    if offset is not None:
        before = source[: int(offset[1])]
        exc.line = before.count("\n") + 1
        exc.column = len(before) - before.rfind("\n")
        return
    exc.line = min(exc.line or 1, len(lines))
    if exc.column is None:
        line = lines[exc.line - 1]
        quoted_words = re.findall(r"'([^']+)'", exc.message)
        candidates = [*reversed(quoted_words), "{{", "{%"]
        positions = [line.find(word) for word in candidates]
        exc.column = next((position for position in positions if position >= 0), 0) + 1


def compile_tree(
    source: str, tree: nodes.Template, selections: tuple[Selection, ...] = ()
) -> Template:
    """Compile a tree. selections.py calls this for trees in which selections replace some parts."""
    weight = _check_tree(tree)
    expressions = ExpressionCompiler(tree, {selection.id: selection for selection in selections})
    expression = _find_only_expression(tree)
    evaluate = None
    if expression is not None:
        evaluate = expressions.compile_expression(expression)
    emit = StatementCompiler(expressions).compile_block(tree.body)
    return Template(source, selections, tree, weight, expression, evaluate, emit)


def _find_only_expression(tree: nodes.Template) -> nodes.Expr | None:
    """Return the expression of a template that has nothing else but white space around it."""
    if len(tree.body) != 1:
        return None
    output = tree.body[0]
    if not isinstance(output, nodes.Output):
        return None
    parts = [node for node in output.nodes if not _is_white_space(node)]
    if len(parts) != 1 or isinstance(parts[0], nodes.TemplateData):
        return None
    return parts[0]


def _is_white_space(node: nodes.Node) -> bool:
    return isinstance(node, nodes.TemplateData) and not node.data.strip()


def _check_tree(tree: nodes.Template) -> int:
    """Count the nodes.

    Refuse a deep tree, because compiling and evaluating recurse for each level.
    """
    count = 0
    stack: list[tuple[nodes.Node, int]] = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        count += 1
        if depth > _MAX_TREE_DEPTH:
            raise LimitError(
                f"the template is nested more than {_MAX_TREE_DEPTH} deep", line=node.lineno
            )
        stack.extend((child, depth + 1) for child in node.iter_child_nodes())
    return count


def parse_texts(value: Value) -> Value:
    """Parse every text value of a structure that is rendered many times."""
    if isinstance(value, str):
        return parse(value)
    if isinstance(value, Mapping):
        return {key: parse_texts(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [parse_texts(part) for part in value]
    return value
