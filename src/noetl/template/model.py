"""A parsed template, and the frame in which it is evaluated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from jinja2 import nodes
from msgspec import Struct

from noetl.template.limits import RenderLimits
from noetl.template.replay_functions import CallMeter, Functions
from noetl.template.values import Value

Scope: TypeAlias = Mapping[str, Value]


class Selection(Struct, frozen=True):
    """A part of an expression that needs one step's payload.

    A worker that has it computes the part.
    """

    id: str
    step: str
    source: str  # canonical text of the expression, without braces


# Returns the value that a worker computed for a selection. May return an Undefined or raise.
SelectionResolver: TypeAlias = Callable[[Selection], Value]


class MarkedValue(Struct, frozen=True):
    """A value that marked text represents by `marker`.

    `source` is the expression that gave the value, `line` is its line in the template. `undoubled`
    is the value without `replace("'", "''")`: see `doubling.py`.
    """

    marker: str
    value: Value
    kind: Literal["value", "identifier", "sql"]
    source: str = ""
    line: int = 1
    undoubled: Value = None


class RenderingFrame(CallMeter):
    """The state of one rendering: the scope, the template's own names, the remaining budget."""

    __slots__ = ("local", "mark", "marks", "out", "scope", "selected")

    def __init__(
        self,
        scope: Scope,
        limits: RenderLimits,
        functions: Functions | None,
        selected: SelectionResolver | None,
    ) -> None:
        self.limits = limits
        self.operations = limits.operations
        self.memory = limits.memory
        self.scope = scope
        self.selected = selected
        self.functions = functions
        self.call_count = 0
        self.local: dict[str, Value] = {}
        self.out: list[str] = []
        self.mark = ""
        self.marks: list[MarkedValue] | None = None


Evaluate: TypeAlias = Callable[[RenderingFrame], Value]
Emit: TypeAlias = Callable[[RenderingFrame], None]


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template. Templates with equal source and equal selections are equal.

    `tree` is None if the source is literal text. `expression` is set if the template yields the
    value of one expression. `weight` is the number of nodes in the tree.
    """

    source: str
    selections: tuple[Selection, ...] = ()
    tree: nodes.Template | None = field(default=None, compare=False, repr=False)
    weight: int = field(default=0, compare=False, repr=False)
    expression: nodes.Expr | None = field(default=None, compare=False, repr=False)
    evaluate: Evaluate | None = field(default=None, compare=False, repr=False)
    emit: Emit | None = field(default=None, compare=False, repr=False)

    @property
    def is_literal(self) -> bool:
        return self.tree is None


def find_dotted_path(template: Template) -> tuple[str, ...] | None:
    """Return the names of a template like `{{ name }}` or `{{ name.member }}`, else None."""
    names: list[str] = []
    node = template.expression
    while isinstance(node, nodes.Getattr):
        names.append(node.attr)
        node = node.node
    if not isinstance(node, nodes.Name):
        return None
    return (node.name, *reversed(names))
