"""Static analysis of templates: the names they use, and the parts that workers compute.

The server decides without reading payloads. So `cut` replaces parts of an expression by selections.
A selection is the largest part that depends on exactly one step's payload, and otherwise only on
constants and stable names. The worker that has the payload evaluates the selection. The server
evaluates the remaining expression with the reported values. Cutting changes no result, because
every part is evaluated only if the original expression would have evaluated it.
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
    """A template with selections in place of its payload parts.

    If `needs_worker` is set, only a worker can evaluate it, and the template is unchanged.
    """

    template: Template
    selections: tuple[Selection, ...]
    names: frozenset[str]  # free names that the cut template still needs
    needs_worker: bool

    @property
    def is_one_selection(self) -> bool:
        """Whether a worker computes the whole expression."""
        return isinstance(self.template.expression, nodes.ImportedName)


# --- names and paths


@dataclass(slots=True)
class _Use:
    path: Path
    asked: bool  # it may be missing, because the template only tests it or gives it a default


@dataclass(slots=True)
class _Uses:
    """Collects the paths that a template uses, in order of evaluation.

    `bound` are the names that the template has set so far. A name that only one branch of an `if`
    sets is not bound afterwards, because its value may come from the scope.
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
    if isinstance(target, nodes.Name):
        return frozenset({target.name})
    return frozenset(name.name for name in target.find_all(nodes.Name))


def _path(node: nodes.Node) -> tuple[Path | None, list[nodes.Node]]:
    """Split an access path that starts at a name into constant keys and computed indexes.

    Returns (None, []) for any other node.
    """
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
    """Return the root names that the template reads from its scope."""
    uses = _uses(_parsed(template))
    return frozenset(str(use.path[0]) for use in uses)


def paths(template: Template | str) -> frozenset[Path]:
    """Return the paths that the template reads from its scope, up to the first computed key."""
    uses = _uses(_parsed(template))
    return frozenset(use.path for use in uses)


def used_paths(template: Template | str) -> frozenset[Path]:
    """Return the paths that must exist. Leaves out those that the template only tests."""
    uses = _uses(_parsed(template))
    return frozenset(use.path for use in uses if not use.asked)


def asked_paths(template: Template | str) -> frozenset[Path]:
    """Return the paths that may be missing, because the template tests them or gives a default."""
    uses = _uses(_parsed(template))
    return frozenset(use.path for use in uses if use.asked)


def never(template: Template | str, known: Collection[str]) -> list[str]:
    """Return the names that the template uses and nothing defines. Names it only tests are fine."""
    required = {str(path[0]) for path in used_paths(template)}
    return sorted(required - set(known))


def _parsed(template: Template | str) -> Template:
    if isinstance(template, str):
        return parse(template)
    return template


# --- cutting


@dataclass(frozen=True, slots=True)
class _Needs:
    """What an expression depends on."""

    steps: frozenset[str] = NOTHING  # it reads the payloads of these steps
    other: bool = False  # whether it reads anything else that is neither constant nor stable

    def __or__(self, more: _Needs) -> _Needs:
        return _Needs(self.steps | more.steps, self.other or more.other)


class _Uncuttable(Exception):
    """Only a worker can evaluate this template."""


@dataclass(slots=True)
class _Cutter:
    """Rewrites a tree and collects the selections, by id.

    `own` is the step that has the template.
    """

    own: str | None
    steps: frozenset[str]
    stable: frozenset[str]
    payload: frozenset[str]  # names that only the worker of the own step can read
    made: dict[str, Selection] = field(default_factory=dict)

    # dependencies

    def needs(self, node: nodes.Node, bound: frozenset[str]) -> _Needs:
        root, fact = _root(node)
        if root is not None:
            _, computed = _path(node)
            of_indexes = [self.needs(child, bound) for child in computed]
            return _union([self.name(root, fact, bound), *of_indexes])
        match node:
            case nodes.Call(node=nodes.Name(name=name)):
                of_function = _Needs(other=name in NOT_REPEATABLE)
                arguments = [*node.args, *node.kwargs]
                of_arguments = [self.needs(argument, bound) for argument in arguments]
                return _union([of_function, *of_arguments])
            case nodes.For():
                raise AssertionError("statements have no single value")
            case _:
                return _union([self.needs(child, bound) for child in node.iter_child_nodes()])

    def name(self, root: str, fact: str | None, bound: frozenset[str]) -> _Needs:
        if root in bound:
            return _Needs(other=True)
        is_payload = root in self.payload or (root in OWN_OUTPUT and fact not in ENVELOPE)
        if self.own is not None and is_payload:
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
        """Make a selection of this expression. Returns the node that takes its place."""
        source = unparse(node)
        key = f"{step}\0{source}".encode("utf-8", "surrogatepass")
        selection_id = hashlib.sha256(key).hexdigest()[:16]
        self.made.setdefault(selection_id, Selection(selection_id, step, source))
        return nodes.ImportedName(SELECTION + selection_id, lineno=node.lineno)

    def refuse(self, node: nodes.Expr, bound: frozenset[str]) -> None:
        """Refuse a payload that is used with values (index, arguments) its worker does not have.

        Cutting it would report the whole payload to the server.
        """
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
        of_subject = self.needs(subject, bound)
        of_arguments = _union([self.needs(argument, bound) for argument in arguments])
        other_steps = of_arguments.steps - of_subject.steps
        if of_subject.steps and (of_arguments.other or other_steps):
            raise _Uncuttable

    def inside(self, node: nodes.Expr, bound: frozenset[str]) -> nodes.Expr:
        """Return a copy of the node in which the children are cut."""
        twin = copy.copy(node)
        is_call = isinstance(node, nodes.Call)
        if isinstance(twin, nodes.Call) and isinstance(twin.node, nodes.Getattr):
            called = copy.copy(twin.node)
            called.node = self.expression(called.node, bound)
            twin.node = called
        for name, value in node.iter_fields():
            if is_call and name == "node":
                continue
            if isinstance(value, list):
                setattr(twin, name, [self.child(child, bound) for child in value])
            elif isinstance(value, nodes.Node):
                setattr(twin, name, self.child(value, bound))
        return twin

    def child(self, node: nodes.Node, bound: frozenset[str]) -> nodes.Node:
        if isinstance(node, nodes.Slice):
            return self.inside(node, bound)
        if isinstance(node, nodes.Expr):
            return self.expression(node, bound)
        twin = copy.copy(node)  # an operand, pair or keyword, which holds expressions
        for name, value in node.iter_fields():
            if isinstance(value, nodes.Expr):
                setattr(twin, name, self.expression(value, bound))
        return twin

    def body(
        self,
        body: list[nodes.Node],
        bound: frozenset[str],
    ) -> tuple[list[nodes.Node], frozenset[str]]:
        statements = []
        for node in body:
            statement, bound = self.statement(node, bound)
            statements.append(statement)
        return statements, bound

    def statement(
        self,
        node: nodes.Node,
        bound: frozenset[str],
    ) -> tuple[nodes.Node, frozenset[str]]:
        """Return a copy of the statement with its expressions cut, and the names bound after it."""
        twin = copy.copy(node)
        match twin:
            case nodes.Output():
                twin.nodes = [self.expression(part, bound) for part in twin.nodes]
            case nodes.Assign():
                twin.node = self.expression(twin.node, bound)
                return twin, bound | self.targets(twin.target)
            case nodes.If():
                return twin, self.cut_if(twin, bound)
            case nodes.For():
                self.refuse_loop(twin, bound)
        return twin, bound

    def cut_if(self, node: nodes.If, bound: frozenset[str]) -> frozenset[str]:
        """Cut the branches of a copied `if` in place. Returns the names that any branch binds."""
        node.test = self.expression(node.test, bound)
        node.body, bound_after = self.body(node.body, bound)
        branches = []
        for other in node.elif_:
            branch, bound_in_branch = self.statement(other, bound)
            branches.append(branch)
            bound_after |= bound_in_branch
        node.elif_ = [branch for branch in branches if isinstance(branch, nodes.If)]
        node.else_, bound_in_else = self.body(node.else_, bound)
        return bound_after | bound_in_else

    def targets(self, target: nodes.Node) -> frozenset[str]:
        """Return the names that a statement sets.

        A template that sets a name of a payload cannot be cut, because the name may mean either.
        """
        names_set = _targets(target)
        payload_names = self.steps
        if self.own is not None:
            payload_names = payload_names | self.payload | OWN_OUTPUT
        if names_set & payload_names:
            raise _Uncuttable
        return names_set

    def refuse_loop(self, loop: nodes.For, bound: frozenset[str]) -> None:
        uses = _Uses()
        uses.statement(loop, bound)
        for use in uses.found:
            root, fact = _root_and_fact(use.path)
            if self.name(root, fact, bound).steps:
                raise _Uncuttable


def _union(parts: list[_Needs]) -> _Needs:
    union = _Needs()
    for part in parts:
        union |= part
    return union


def _root(node: nodes.Node) -> tuple[str | None, str | None]:
    """Return the name that a path starts with, and its first member if that is constant."""
    path, _ = _path(node)
    if path is None:
        return None, None
    return _root_and_fact(path)


def _root_and_fact(path: Path) -> tuple[str, str | None]:
    root = str(path[0])
    if len(path) == 1:
        return root, None
    return root, str(path[1])


def cut(
    template: Template | str,
    *,
    own: str | None,
    steps: Collection[str],
    stable: Collection[str] = NOTHING,
    payload: frozenset[str] = OWN_PAYLOAD,
) -> CutTemplate:
    """Replace the parts of a template that need a payload by selections.

    See the module's docstring.
    """
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
    selections = tuple(cutter.made.values())
    rest = build(template.source, nodes.Template(body, lineno=1), selections)
    return CutTemplate(rest, rest.selections, names(rest), False)


def makes_list_or_map(template: Template) -> bool:
    """Whether the template is an expression that writes out a list or a map: `{{ [a, b] }}`."""
    return isinstance(template.expression, nodes.List | nodes.Dict | nodes.Tuple)


def as_expression(value: object) -> str | None:
    """Write a list or map of templates as one expression.

    None if a template in it is no expression.
    """
    match value:
        case str():
            template = parse(value)
            if template.is_literal:
                return literal(value)
            if template.expression is None:
                return None
            return unparse(template.expression)
        case list():
            parts = [as_expression(part) for part in value]
            expressions = [part for part in parts if part is not None]
            if len(expressions) < len(parts):
                return None
            return f"[{', '.join(expressions)}]"
        case dict():
            values = {literal(str(key)): as_expression(part) for key, part in value.items()}
            if None in values.values():
                return None
            pairs = [f"{key}: {expression}" for key, expression in values.items()]
            return "{" + ", ".join(pairs) + "}"
        case None | bool() | int() | float():
            return literal(value)
        case _:
            return None


def select(selection: Selection, scope: Scope, *, limits: RenderLimits = WORKER_LIMITS) -> Value:
    """Evaluate a selection on a worker.

    Returns a value, a Lazy to report by reference, or an Undefined.

    An undefined selection has not failed: `fetch.n | default(ctx.n)` must know that `fetch.n` is
    missing.
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
