"""The texts that a template can become, before there are values: a marker stands for each `{{ expression }}`.

Of every `{% if %}` the first branches are taken together, then the second ones, and so on; the body of a `{% for %}` comes once.
That is not every text there can be, but each of these is one that the author had in mind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jinja2 import nodes

from noetl.playbook.doubling import undoubled
from noetl.playbook.expressions import unparse
from noetl.playbook.sqlplaces import MarkKind
from noetl.playbook.templates import Template

PRIVATE = "\ue000"


@dataclass(frozen=True, slots=True)
class Spot:
    """An expression in the text, where it stands in the template, and whether it doubles quotes."""

    source: str
    kind: MarkKind
    line: int
    doubles: bool


@dataclass(frozen=True, slots=True)
class Outline:
    """`spots` are in the order of their markers."""

    text: str
    spots: tuple[Spot, ...]


def marker(number: int) -> str:
    return f"{PRIVATE}{number}{PRIVATE}"


def outlines(template: Template) -> Iterator[Outline]:
    if template.tree is None:
        yield Outline(template.source, ())
        return
    for choice in range(_branches(template.tree)):
        spots: list[Spot] = []
        words = list(_texts(template.tree.body, choice, spots))
        yield Outline("".join(words), tuple(spots))


def _branches(tree: nodes.Template) -> int:
    """How many branches the `{% if %}` with the most of them has, the one without a condition too."""
    counts = (len(node.elif_) + 2 for node in tree.find_all(nodes.If))
    return max(counts, default=1)


def _texts(body: Sequence[nodes.Node], choice: int, spots: list[Spot]) -> Iterator[str]:
    for node in body:
        match node:
            case nodes.Output():
                for part in node.nodes:
                    yield (
                        part.data.replace(PRIVATE, "")
                        if isinstance(part, nodes.TemplateData)
                        else _spot(part, spots)
                    )
            case nodes.If():
                bodies = [node.body, *(other.body for other in node.elif_), node.else_]
                yield from _texts(bodies[min(choice, len(bodies) - 1)], choice, spots)
            case nodes.For():
                yield from _texts(node.body, choice, spots)
            case _:
                continue


def _spot(node: nodes.Expr, spots: list[Spot]) -> str:
    kind: MarkKind = "value"
    if isinstance(node, nodes.Filter) and node.name in ("identifier", "sql"):
        kind = "identifier" if node.name == "identifier" else "sql"
    spots.append(Spot(unparse(node), kind, node.lineno, undoubled(node) is not None))
    return marker(len(spots) - 1)
