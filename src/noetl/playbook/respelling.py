"""Other spellings of names in the text of a template, with everything else in the text kept as it is written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from noetl.playbook import selections, templates
from noetl.playbook.expressions import TemplateError

Token = tuple[int, str, str]  # offset in the source, kind, text


@dataclass(frozen=True, slots=True)
class Respelled:
    """`growth`: (offset in the old text, characters more) of each change."""

    text: str
    names: list[str]
    growth: list[tuple[int, int]]


def respell(source: str, spellings: Mapping[str, str]) -> Respelled | None:
    """The template with each name that it takes from its scope spelled like `spellings` says, for example `total` as `ctx.total`.
    None when there is nothing to change, or no change that is certain to mean the same."""
    wanted = _wanted(source, spellings)
    if not wanted:
        return None
    pieces: list[str] = []
    growth: list[tuple[int, int]] = []
    end = 0
    for offset, name in _occurrences(source, wanted):
        pieces += [source[end:offset], wanted[name]]
        growth.append((offset, len(wanted[name]) - len(name)))
        end = offset + len(name)
    text = "".join([*pieces, source[end:]])
    return Respelled(text, sorted(wanted), growth) if _means(text, source, wanted) else None


def _wanted(source: str, spellings: Mapping[str, str]) -> dict[str, str]:
    """Those that the template uses. A template that binds the name, or the first part of its spelling, uses its own."""
    if "\r" in source or not any(name in source for name in spellings):
        return {}
    try:
        template = templates.parse(source)
    except TemplateError:
        return {}
    if template.tree is None:
        return {}
    used = selections.names(template)
    bound = templates.bound_names(template.tree)
    return {
        name: spelling
        for name, spelling in spellings.items()
        if name in used and name not in bound and spelling.split(".")[0] not in bound
    }


def _occurrences(source: str, wanted: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    tokens = [token for token in _tokens(source) if token[1] != "whitespace"]
    for index, (offset, kind, name) in enumerate(tokens):
        if kind != "name" or name not in wanted:
            continue
        before = tokens[index - 1][2] if index > 0 else ""
        after = tokens[index + 1][2] if index + 1 < len(tokens) else ""
        is_member_or_filter = before in (".", "|", "is")
        is_argument_name = after == "="
        if not is_member_or_filter and not is_argument_name:
            yield offset, name


def _tokens(source: str) -> Iterator[Token]:
    """The lexer leaves out white space only, so the next place with a token's text is its place."""
    end = 0
    for _, kind, text in templates.tokens(source):
        offset = source.find(text, end)
        if offset < 0:
            return
        yield offset, kind, text
        end = offset + len(text)


def _means(text: str, source: str, wanted: Mapping[str, str]) -> bool:
    """The new text is the old template with these names replaced, and nothing else."""
    try:
        return bool(templates.tree(text) == _Replace(wanted).visit(templates.tree(source)))
    except TemplateError:
        return False


class _Replace(NodeTransformer):
    def __init__(self, wanted: Mapping[str, str]) -> None:
        self.wanted = wanted

    def visit_Name(self, node: nodes.Name) -> nodes.Expr:
        root, *members = self.wanted.get(node.name, node.name).split(".")
        found: nodes.Expr = nodes.Name(root, node.ctx)
        for member in members:
            found = nodes.Getattr(found, member, node.ctx)
        return found
