"""Replaces names in the text of a template. The rest of the text stays as it is written."""

from collections.abc import Iterator, Mapping

from jinja2 import nodes
from jinja2.visitor import NodeTransformer
from msgspec import Struct

from noetl.template.errors import TemplateError
from noetl.template.expressions import find_assigned_names
from noetl.template.parsing import parse, parse_tree, tokenize_template
from noetl.template.used_names import find_names

Token = tuple[int, str, str]  # offset in the source, kind, text


class RespelledText(Struct, frozen=True):
    """`growth` has (offset in the old text, number of added characters) of each change."""

    text: str
    names: list[str]
    growth: list[tuple[int, int]]


def respell(source: str, spellings: Mapping[str, str]) -> RespelledText | None:
    """Replace the names that a template reads from its scope, for example `total` by `ctx.total`.

    `spellings` maps old to new names. Returns None if there is nothing to replace, or if the new
    text might mean something else.
    """
    replacements = _select_spellings(source, spellings)
    if not replacements:
        return None
    pieces: list[str] = []
    growth: list[tuple[int, int]] = []
    end = 0
    for offset, name in _find_occurrences(source, replacements):
        pieces += [source[end:offset], replacements[name]]
        growth.append((offset, len(replacements[name]) - len(name)))
        end = offset + len(name)
    text = "".join([*pieces, source[end:]])
    if not _means_same(text, source, replacements):
        return None
    return RespelledText(text, sorted(replacements), growth)


def _select_spellings(source: str, spellings: Mapping[str, str]) -> dict[str, str]:
    """Return the spellings that the template needs.

    Leaves out names that the template sets itself, and spellings with a root that it sets itself.
    """
    if "\r" in source or not any(name in source for name in spellings):
        return {}
    try:
        template = parse(source)
    except TemplateError:
        return {}
    if template.tree is None:
        return {}
    used = find_names(template)
    bound = find_assigned_names(template.tree)
    return {
        name: spelling
        for name, spelling in spellings.items()
        if name in used and name not in bound and spelling.split(".")[0] not in bound
    }


def _find_occurrences(source: str, replacements: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield offset and name of each name to replace."""
    tokens = [token for token in _locate_tokens(source) if token[1] != "whitespace"]
    texts = ["", *(text for _, _, text in tokens), ""]
    for index, (offset, kind, name) in enumerate(tokens):
        if kind != "name" or name not in replacements:
            continue
        before, after = texts[index], texts[index + 2]
        is_member_or_filter = before in (".", "|", "is")
        is_argument_name = after == "="
        if not is_member_or_filter and not is_argument_name:
            yield offset, name


def _locate_tokens(source: str) -> Iterator[Token]:
    """Yield the tokens with their offsets.

    The lexer omits only white space, so a token is at the next place that has its text.
    """
    end = 0
    for _, kind, text in tokenize_template(source):
        offset = source.find(text, end)
        if offset < 0:
            return
        yield offset, kind, text
        end = offset + len(text)


def _means_same(text: str, source: str, replacements: Mapping[str, str]) -> bool:
    """Whether the new text is the old template with exactly these names replaced."""
    try:
        new_tree = parse_tree(text)
        old_tree = parse_tree(source)
    except TemplateError:
        return False
    return bool(new_tree == _NameReplacer(replacements).visit(old_tree))


class _NameReplacer(NodeTransformer):
    def __init__(self, replacements: Mapping[str, str]) -> None:
        self.replacements = replacements

    def visit_Name(self, node: nodes.Name) -> nodes.Expr:
        spelling = self.replacements.get(node.name, node.name)
        root, *members = spelling.split(".")
        found: nodes.Expr = nodes.Name(root, node.ctx)
        for member in members:
            found = nodes.Getattr(found, member, node.ctx)
        return found
