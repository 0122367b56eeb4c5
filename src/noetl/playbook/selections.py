"""What templates use, and which parts of them are computed where the data is.

The server decides without opening payloads: `cut` takes the largest parts of an expression that depend on exactly one
step's payload (and otherwise on constants and stable names) out of it, as selections of that step. The worker that has
the payload evaluates each selection's source; the server evaluates the rest with the reported values in place. Since
every part is evaluated only where the original would have evaluated it, cutting changes no result.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from jinja2 import nodes

from noetl.playbook.expressions import (
    SELECTION,
    WORKER_LIMITS,
    RenderLimits,
    Value,
    literal,
    suggest,
    unparse,
)
from noetl.playbook.functions import NOT_REPEATABLE
from noetl.playbook.templates import (
    Scope,
    Selected,
    Selection,
    Template,
    build,
    parse,
    parse_expression,
    probe,
)

Path: TypeAlias = tuple[str | int, ...]

OWN_PAYLOAD = frozenset({"response", "result"})
OWN_OUTPUT = frozenset({"output", "outcome"})
OWN_INPUT = frozenset({"input", "args"})
ENVELOPE = frozenset(
    (
        "status",
        "ref",
        "error",
        "http",
        "pg",
        "py",
        "meta",
        "context",
        "stats",
        "row_count",
        "columns",
    )
)
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CutTemplate:
    """A template with its payload parts taken out; unchanged when only a worker can evaluate it."""

    template: Template
    selections: tuple[Selection, ...]
    names: frozenset[str]  # free names that the cut template still needs
    needs_worker: bool

    @property
    def is_one_selection(self) -> bool:
        """The whole expression is computed where the data is."""
        return isinstance(self.template.expression, nodes.ImportedName)


# --- names and paths


@dataclass(slots=True)
class _Use:
    path: Path
    asked: bool  # only tested or given a default: it may be missing


@dataclass(slots=True)
class _Uses:
    """Walks a template in order of evaluation, with the names bound so far.

    A name set in one branch of an `if` may be local or free afterwards: it counts as both.
    """

    found: list[_Use] = field(default_factory=list)

    def body(self, body: list[nodes.Node], bound: frozenset[str]) -> frozenset[str]:
        for node in body:
            bound = self.statement(node, bound)
        return bound

    def statement(self, node: nodes.Node, bound: frozenset[str]) -> frozenset[str]:
        match node:
            case nodes.Assign():
                self.expression(node.node, bound)
                return bound | _targets(node.target)
            case nodes.For():
                self.expression(node.iter, bound)
                inner = bound | _targets(node.target)
                if node.test is not None:
                    self.expression(node.test, inner)
                self.body(node.body, inner | {"loop"})
                self.body(node.else_, bound)
                return bound
            case nodes.If():
                self.expression(node.test, bound)
                after = [self.body(node.body, bound)]
                for other in node.elif_:
                    self.expression(other.test, bound)
                    after.append(self.body(other.body, bound))
                after.append(self.body(node.else_, bound))
                return frozenset.intersection(*after)
            case _:
                for child in node.iter_child_nodes():
                    self.expression(child, bound)
                return bound

    def expression(self, node: nodes.Node, bound: frozenset[str], asked: bool = False) -> None:
        path, rest = _path(node)
        if path is not None:
            if path[0] not in bound:
                self.found.append(_Use(path, asked))
            for child in rest:
                self.expression(child, bound)
            return
        match node:
            case nodes.Call(node=nodes.Name()):
                children = iter([*node.args, *node.kwargs])
            case nodes.Call(node=nodes.Getattr() as called):
                children = iter([called.node, *node.args, *node.kwargs])
            case nodes.Test(name="defined" | "undefined") | nodes.Filter(name="default" | "d"):
                assert node.node is not None
                self.expression(node.node, bound, asked=True)
                children = iter([*node.args, *node.kwargs])
            case nodes.Getattr():
                self.expression(node.node, bound, asked)
                return
            case _:
                children = node.iter_child_nodes()
        for child in children:
            self.expression(child, bound)


def _targets(target: nodes.Node) -> frozenset[str]:
    names = (
        {target.name}
        if isinstance(target, nodes.Name)
        else {name.name for name in target.find_all(nodes.Name)}
    )
    return frozenset(names)


def _path(node: nodes.Node) -> tuple[Path | None, list[nodes.Node]]:
    """The constant part of an access path that starts at a name, and the computed indexes that follow it."""
    keys: list[str | int] = []
    computed: list[nodes.Node] = []
    while isinstance(node, (nodes.Getattr, nodes.Getitem)):
        if isinstance(node, nodes.Getattr):
            keys.append(node.attr)
        elif isinstance(node.arg, nodes.Const) and type(node.arg.value) in (str, int):
            keys.append(node.arg.value)
        else:
            keys.clear()
            computed.append(node.arg)
        node = node.node
    if not isinstance(node, nodes.Name):
        return None, []
    return (node.name, *reversed(keys)), computed


@lru_cache(maxsize=4096)
def _uses(template: Template) -> tuple[_Use, ...]:
    if template.tree is None:
        return ()
    uses = _Uses()
    uses.body(template.tree.body, NOTHING)
    return tuple(uses.found)


def names(template: Template | str) -> frozenset[str]:
    """Root names that the template takes from its scope."""
    return frozenset(str(use.path[0]) for use in _uses(_parsed(template)))


def paths(template: Template | str) -> frozenset[Path]:
    """What it takes from each of them, as far as that is constant."""
    return frozenset(use.path for use in _uses(_parsed(template)))


def used_paths(template: Template | str) -> frozenset[Path]:
    """Those of them that must be there: it does not merely ask whether they are."""
    return frozenset(use.path for use in _uses(_parsed(template)) if not use.asked)


def asked_paths(template: Template | str) -> frozenset[Path]:
    """Those of them that may be missing: a test or a default asks whether they are there."""
    return frozenset(use.path for use in _uses(_parsed(template)) if use.asked)


def never(template: Template | str, known: Collection[str]) -> list[str]:
    """Names the template uses that nothing defines; those it merely asks about may be missing."""
    used = {str(use.path[0]) for use in _uses(_parsed(template)) if not use.asked}
    return sorted(used - set(known))


def _parsed(template: Template | str) -> Template:
    return parse(template) if isinstance(template, str) else template


# --- cutting


@dataclass(frozen=True, slots=True)
class _Needs:
    """What an expression depends on: payloads of these steps, and anything that is neither constant nor stable."""

    steps: frozenset[str] = NOTHING
    other: bool = False

    def __or__(self, more: _Needs) -> _Needs:
        return _Needs(self.steps | more.steps, self.other or more.other)


class _Uncuttable(Exception):
    """Only a worker can evaluate this template."""


@dataclass(slots=True)
class _Cutter:
    own: str | None
    steps: frozenset[str]
    stable: frozenset[str]
    payload: frozenset[str]  # names of what only the own step's worker has
    made: dict[str, Selection] = field(default_factory=dict)

    # what a part depends on

    def needs(self, node: nodes.Node, bound: frozenset[str]) -> _Needs:
        root, fact = _root(node)
        if root is not None:
            below = [self.needs(child, bound) for child in _path(node)[1]]
            return _union([self.name(root, fact, bound), *below])
        match node:
            case nodes.Call(node=nodes.Name(name=name)):
                here = _Needs(other=name in NOT_REPEATABLE)
                return _union(
                    [here, *(self.needs(child, bound) for child in [*node.args, *node.kwargs])]
                )
            case nodes.For():
                raise AssertionError("statements have no single value")
            case _:
                return _union([self.needs(child, bound) for child in node.iter_child_nodes()])

    def name(self, root: str, fact: str | None, bound: frozenset[str]) -> _Needs:
        if root in bound:
            return _Needs(other=True)
        if self.own is not None and (
            root in self.payload or (root in OWN_OUTPUT and fact not in ENVELOPE)
        ):
            return _Needs(frozenset({self.own}))
        if root in self.steps:
            return _Needs(frozenset({root}))
        return _Needs(other=root not in self.stable)

    # rewriting

    def expression(self, node: nodes.Node, bound: frozenset[str]) -> nodes.Expr:
        needs = self.needs(node, bound)
        assert isinstance(node, nodes.Expr)
        if not needs.steps:
            return node
        if len(needs.steps) == 1 and not needs.other:
            return self.select(node, next(iter(needs.steps)))
        self.refuse(node, bound)
        return self.inside(node, bound)

    def select(self, node: nodes.Expr, step: str) -> nodes.Expr:
        source = unparse(node)
        digest = hashlib.sha256(f"{step}\0{source}".encode("utf-8", "surrogatepass")).hexdigest()[
            :16
        ]
        self.made.setdefault(digest, Selection(digest, step, source))
        return nodes.ImportedName(SELECTION + digest, lineno=node.lineno)

    def refuse(self, node: nodes.Expr, bound: frozenset[str]) -> None:
        """A payload indexed, filtered or called with what its worker does not have: shipping it whole is no option."""
        arguments: list[nodes.Node]
        match node:
            case nodes.Getitem():
                subject, arguments = node.node, [node.arg]
            case nodes.Call(node=nodes.Getattr() as called):
                subject, arguments = called.node, [*node.args, *node.kwargs]
            case nodes.Filter() if node.name not in ("default", "d") and node.node is not None:
                subject, arguments = node.node, [*node.args, *node.kwargs]
            case _:
                return
        below, beside = (
            self.needs(subject, bound),
            _union([self.needs(argument, bound) for argument in arguments]),
        )
        if below.steps and (beside.other or beside.steps - below.steps):
            raise _Uncuttable

    def inside(self, node: nodes.Expr, bound: frozenset[str]) -> nodes.Expr:
        """A copy of the node with its children cut."""
        made = copy.copy(node)
        if isinstance(made, nodes.Call) and isinstance(made.node, nodes.Getattr):
            called = copy.copy(made.node)
            called.node = self.expression(called.node, bound)
            made.node = called
        for name, value in node.iter_fields(
            exclude=("node",) if isinstance(node, nodes.Call) else ()
        ):
            if isinstance(value, list):
                setattr(made, name, [self.child(child, bound) for child in value])
            elif isinstance(value, nodes.Node):
                setattr(made, name, self.child(value, bound))
        return made

    def child(self, node: nodes.Node, bound: frozenset[str]) -> nodes.Node:
        if isinstance(node, nodes.Slice):
            return self.inside(node, bound)
        if isinstance(node, nodes.Expr):
            return self.expression(node, bound)
        made = copy.copy(node)  # an operand, pair or keyword: a holder of expressions
        for name, value in node.iter_fields():
            if isinstance(value, nodes.Expr):
                setattr(made, name, self.expression(value, bound))
        return made

    def body(
        self, body: list[nodes.Node], bound: frozenset[str]
    ) -> tuple[list[nodes.Node], frozenset[str]]:
        made = []
        for node in body:
            node, bound = self.statement(node, bound)
            made.append(node)
        return made, bound

    def statement(
        self, node: nodes.Node, bound: frozenset[str]
    ) -> tuple[nodes.Node, frozenset[str]]:
        made = copy.copy(node)
        match made:
            case nodes.Output():
                made.nodes = [self.expression(part, bound) for part in made.nodes]
            case nodes.Assign():
                made.node = self.expression(made.node, bound)
                return made, bound | self.targets(made.target)
            case nodes.If():
                made.test = self.expression(made.test, bound)
                made.body, after = self.body(made.body, bound)
                branches = []
                for other in made.elif_:
                    branch, more = self.statement(other, bound)
                    branches.append(branch)
                    after |= more
                made.elif_ = [branch for branch in branches if isinstance(branch, nodes.If)]
                made.else_, more = self.body(made.else_, bound)
                return made, after | more
            case nodes.For():
                self.refuse_loop(made, bound)
        return made, bound

    def targets(self, target: nodes.Node) -> frozenset[str]:
        """Names set by the template; one that is also a payload could be either afterwards, which cannot be cut."""
        found = _targets(target)
        if found & (self.steps | (self.payload | OWN_OUTPUT if self.own is not None else NOTHING)):
            raise _Uncuttable
        return found

    def refuse_loop(self, loop: nodes.For, bound: frozenset[str]) -> None:
        uses = _Uses()
        uses.statement(loop, bound)
        for use in uses.found:
            fact = str(use.path[1]) if len(use.path) > 1 else None
            if self.name(str(use.path[0]), fact, bound).steps:
                raise _Uncuttable


def _union(parts: list[_Needs]) -> _Needs:
    made = _Needs()
    for part in parts:
        made |= part
    return made


def _root(node: nodes.Node) -> tuple[str | None, str | None]:
    """The name a path starts with, and its first member when that is constant."""
    path, _ = _path(node)
    if path is None:
        return None, None
    return str(path[0]), str(path[1]) if len(path) > 1 else None


def cut(
    template: Template | str,
    *,
    own: str | None,
    steps: Collection[str],
    stable: Collection[str] = NOTHING,
    payload: frozenset[str] = OWN_PAYLOAD,
) -> CutTemplate:
    return _cut(_parsed(template), own, frozenset(steps), frozenset(stable), payload)


@lru_cache(maxsize=4096)
def _cut(
    template: Template,
    own: str | None,
    steps: frozenset[str],
    stable: frozenset[str],
    payload: frozenset[str],
) -> CutTemplate:
    if template.tree is None:
        return CutTemplate(template, (), NOTHING, False)
    cutter = _Cutter(own, steps, stable, payload)
    try:
        body, _ = cutter.body(template.tree.body, NOTHING)
    except _Uncuttable:
        return CutTemplate(template, (), names(template), True)
    if not cutter.made:
        return CutTemplate(template, (), names(template), False)
    made = build(template.source, nodes.Template(body, lineno=1), tuple(cutter.made.values()))
    return CutTemplate(made, made.selections, names(made), False)


def makes_list_or_map(template: Template) -> bool:
    """Whether the template is an expression that writes out a list or a map: `{{ [a, b] }}`."""
    return isinstance(template.expression, nodes.List | nodes.Dict | nodes.Tuple)


def as_expression(value: object) -> str | None:
    """The expression that makes this list or map of templates; None if a template in it is no expression."""
    match value:
        case str():
            template = parse(value)
            if template.is_literal:
                return literal(value)
            return None if template.expression is None else unparse(template.expression)
        case list():
            parts = [as_expression(part) for part in value]
            found = [part for part in parts if part is not None]
            return f"[{', '.join(found)}]" if len(found) == len(parts) else None
        case dict():
            named = {literal(str(key)): as_expression(part) for key, part in value.items()}
            pairs = [f"{key}: {part}" for key, part in named.items() if part is not None]
            return "{" + ", ".join(pairs) + "}" if len(pairs) == len(named) else None
        case None | bool() | int() | float():
            return literal(value)
        case _:
            return None


def select(selection: Selection, scope: Scope, *, limits: RenderLimits = WORKER_LIMITS) -> Value:
    """What a worker reports for a selection: a value, a Lazy to report by reference, or an Undefined. Raises what fails.

    An undefined selection is not a failed one: `fetch.n | default(ctx.n)` needs to know that `fetch.n` is missing.
    """
    return probe(parse_expression(selection.source), scope, limits=limits)


__all__ = [
    "CutTemplate",
    "Path",
    "Selected",
    "Selection",
    "as_expression",
    "asked_paths",
    "cut",
    "makes_list_or_map",
    "names",
    "never",
    "paths",
    "select",
    "suggest",
    "used_paths",
]
