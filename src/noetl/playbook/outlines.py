"""Outlines: texts that a template can render to, with a marker in place of each `{{ expression }}`.

The first outline takes the first branch of every `{% if %}`, the second outline the second branch,
and so on. It has the body of each `{% for %}` once. These are not all possible texts, but
validation of SQL needs only typical ones.
"""

from collections.abc import Iterator, Sequence

from jinja2 import nodes
from msgspec import Struct

from noetl.playbook.sqlplaces import MarkKind
from noetl.template.doubling import remove_doubling
from noetl.template.model import Template
from noetl.template.unparsing import unparse

MARKER_CHARACTER = "\ue000"
_MAX_OUTLINES = 50


class OutlineSpot(Struct, frozen=True):
    """An expression of an outline, its line in the template, and whether it doubles quotes."""

    source: str
    kind: MarkKind
    line: int
    doubles: bool


class Outline(Struct, frozen=True):
    """`spots` are in the order of their markers."""

    text: str
    spots: tuple[OutlineSpot, ...]


def make_marker(number: int) -> str:
    return f"{MARKER_CHARACTER}{number}{MARKER_CHARACTER}"


def make_outlines(template: Template) -> Iterator[Outline]:
    if template.tree is None:
        yield Outline(template.source, ())
        return
    for choice in range(min(_count_branches(template.tree), _MAX_OUTLINES)):
        spots: list[OutlineSpot] = []
        texts = list(_outline_texts(template.tree.body, choice, spots))
        yield Outline("".join(texts), tuple(spots))


def _count_branches(tree: nodes.Template) -> int:
    """Count the branches of the longest `{% if %}`, the else branch included."""
    counts = (len(node.elif_) + 2 for node in tree.find_all(nodes.If))
    return max(counts, default=1)


def _outline_texts(
    body: Sequence[nodes.Node], choice: int, spots: list[OutlineSpot]
) -> Iterator[str]:
    for node in body:
        match node:
            case nodes.Output():
                for part in node.nodes:
                    if isinstance(part, nodes.TemplateData):
                        yield part.data.replace(MARKER_CHARACTER, "")
                    else:
                        yield _add_spot(part, spots)
            case nodes.If():
                elif_bodies = [other.body for other in node.elif_]
                bodies = [node.body, *elif_bodies, node.else_]
                branch = min(choice, len(bodies) - 1)
                yield from _outline_texts(bodies[branch], choice, spots)
            case nodes.For():
                yield from _outline_texts(node.body, choice, spots)
            case _:
                continue


def _add_spot(node: nodes.Expr, spots: list[OutlineSpot]) -> str:
    """Add the expression to the spots. Returns its marker."""
    kind: MarkKind = "value"
    if isinstance(node, nodes.Filter):
        if node.name == "identifier":
            kind = "identifier"
        elif node.name == "sql":
            kind = "sql"
    doubles = remove_doubling(node) is not None
    spots.append(OutlineSpot(unparse(node), kind, node.lineno, doubles))
    return make_marker(len(spots) - 1)
