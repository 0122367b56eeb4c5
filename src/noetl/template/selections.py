"""Selections: the parts of a template that workers compute for the server.

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

from jinja2 import nodes
from msgspec import Struct

from noetl.template.functions.globals import NOT_REPEATABLE
from noetl.template.model import Selection, Template
from noetl.template.parsing import compile_tree, parse
from noetl.template.scopes import ENVELOPE_MEMBERS
from noetl.template.unparsing import SELECTION_PREFIX, unparse, write_literal
from noetl.template.used_names import (
    NO_NAMES,
    Path,
    UseCollector,
    ensure_parsed,
    find_names,
    find_targets,
    split_path,
)

OWN_PAYLOAD = frozenset({"response", "result"})
OWN_OUTPUT = frozenset({"output", "outcome"})
OWN_INPUT = frozenset({"input", "args"})


class CutTemplate(Struct, frozen=True):
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


class _Needs(Struct, frozen=True):
    """What an expression depends on."""

    steps: frozenset[str] = NO_NAMES  # it reads the payloads of these steps
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
    selections_by_id: dict[str, Selection] = field(default_factory=dict)
    # What each node needs: rewriting asks for the same nodes again at every level of the tree.
    needs_by_node: dict[tuple[int, frozenset[str]], _Needs] = field(default_factory=dict)

    # dependencies

    def find_needs(self, node: nodes.Node, bound: frozenset[str]) -> _Needs:
        key = (id(node), bound)
        needs = self.needs_by_node.get(key)
        if needs is None:
            needs = self.needs_by_node[key] = self.collect_needs(node, bound)
        return needs

    def collect_needs(self, node: nodes.Node, bound: frozenset[str]) -> _Needs:
        root, fact = _find_path_root(node)
        if root is not None:
            _, computed = split_path(node)
            of_indexes = [self.find_needs(child, bound) for child in computed]
            return _unite_needs([self.find_name_needs(root, fact, bound), *of_indexes])
        match node:
            case nodes.Call(node=nodes.Name(name=name)):
                of_function = _Needs(other=name in NOT_REPEATABLE)
                arguments = [*node.args, *node.kwargs]
                of_arguments = [self.find_needs(argument, bound) for argument in arguments]
                return _unite_needs([of_function, *of_arguments])
            case nodes.For():
                raise AssertionError("statements have no single value")
            case _:
                return _unite_needs(
                    [self.find_needs(child, bound) for child in node.iter_child_nodes()]
                )

    def find_name_needs(
        self,
        root: str,
        fact: str | None,
        bound: frozenset[str],
    ) -> _Needs:
        if root in bound:
            return _Needs(other=True)
        is_payload = root in self.payload or (root in OWN_OUTPUT and fact not in ENVELOPE_MEMBERS)
        if self.own is not None and is_payload:
            return _Needs(frozenset({self.own}))
        if root in self.steps:
            return _Needs(frozenset({root}))
        return _Needs(other=root not in self.stable)

    # rewriting

    def cut_expression(self, node: nodes.Node, bound: frozenset[str]) -> nodes.Expr:
        needs = self.find_needs(node, bound)
        assert isinstance(node, nodes.Expr)
        if not needs.steps:
            return node
        if len(needs.steps) == 1 and not needs.other:
            return self.make_selection(node, next(iter(needs.steps)))
        self.refuse_mixed_access(node, bound)
        return self.cut_children(node, bound)

    def make_selection(self, node: nodes.Expr, step: str) -> nodes.Expr:
        """Make a selection of this expression. Returns the node that takes its place."""
        source = unparse(node)
        key = f"{step}\0{source}".encode("utf-8", "surrogatepass")
        selection_id = hashlib.sha256(key).hexdigest()[:16]
        self.selections_by_id.setdefault(selection_id, Selection(selection_id, step, source))
        return nodes.ImportedName(SELECTION_PREFIX + selection_id, lineno=node.lineno)

    def refuse_mixed_access(self, node: nodes.Expr, bound: frozenset[str]) -> None:
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
        of_subject = self.find_needs(subject, bound)
        of_arguments = _unite_needs([self.find_needs(argument, bound) for argument in arguments])
        other_steps = of_arguments.steps - of_subject.steps
        if of_subject.steps and (of_arguments.other or other_steps):
            raise _Uncuttable

    def cut_children(self, node: nodes.Expr, bound: frozenset[str]) -> nodes.Expr:
        """Return a copy of the node in which the children are cut."""
        twin = copy.copy(node)
        is_call = isinstance(node, nodes.Call)
        if isinstance(twin, nodes.Call) and isinstance(twin.node, nodes.Getattr):
            called = copy.copy(twin.node)
            called.node = self.cut_expression(called.node, bound)
            twin.node = called
        for name, value in node.iter_fields():
            if is_call and name == "node":
                continue
            if isinstance(value, list):
                setattr(twin, name, [self.cut_child(child, bound) for child in value])
            elif isinstance(value, nodes.Node):
                setattr(twin, name, self.cut_child(value, bound))
        return twin

    def cut_child(self, node: nodes.Node, bound: frozenset[str]) -> nodes.Node:
        if isinstance(node, nodes.Slice):
            return self.cut_children(node, bound)
        if isinstance(node, nodes.Expr):
            return self.cut_expression(node, bound)
        twin = copy.copy(node)  # an operand, pair or keyword, which holds expressions
        for name, value in node.iter_fields():
            if isinstance(value, nodes.Expr):
                setattr(twin, name, self.cut_expression(value, bound))
        return twin

    def cut_statements(
        self,
        body: list[nodes.Node],
        bound: frozenset[str],
    ) -> tuple[list[nodes.Node], frozenset[str]]:
        statements = []
        for node in body:
            statement, bound = self.cut_statement(node, bound)
            statements.append(statement)
        return statements, bound

    def cut_statement(
        self,
        node: nodes.Node,
        bound: frozenset[str],
    ) -> tuple[nodes.Node, frozenset[str]]:
        """Return a copy of the statement with its expressions cut, and the names bound after it."""
        twin = copy.copy(node)
        match twin:
            case nodes.Output():
                twin.nodes = [self.cut_expression(part, bound) for part in twin.nodes]
            case nodes.Assign():
                twin.node = self.cut_expression(twin.node, bound)
                return twin, bound | self.refuse_payload_targets(twin.target)
            case nodes.If():
                return twin, self.cut_if(twin, bound)
            case nodes.For():
                self.refuse_loop(twin, bound)
        return twin, bound

    def cut_if(self, node: nodes.If, bound: frozenset[str]) -> frozenset[str]:
        """Cut the branches of a copied `if` in place. Returns the names that any branch binds."""
        node.test = self.cut_expression(node.test, bound)
        node.body, bound_after = self.cut_statements(node.body, bound)
        branches = []
        for other in node.elif_:
            branch, bound_in_branch = self.cut_statement(other, bound)
            branches.append(branch)
            bound_after |= bound_in_branch
        node.elif_ = [branch for branch in branches if isinstance(branch, nodes.If)]
        node.else_, bound_in_else = self.cut_statements(node.else_, bound)
        return bound_after | bound_in_else

    def refuse_payload_targets(self, target: nodes.Node) -> frozenset[str]:
        """Return the names that a statement sets.

        A template that sets a name of a payload cannot be cut, because the name may mean either.
        """
        names_set = find_targets(target)
        payload_names = self.steps
        if self.own is not None:
            payload_names = payload_names | self.payload | OWN_OUTPUT
        if names_set & payload_names:
            raise _Uncuttable
        return names_set

    def refuse_loop(self, loop: nodes.For, bound: frozenset[str]) -> None:
        uses = UseCollector()
        uses.walk_statement(loop, bound)
        for use in uses.found:
            root, fact = _split_root(use.path)
            if self.find_name_needs(root, fact, bound).steps:
                raise _Uncuttable


def _unite_needs(parts: list[_Needs]) -> _Needs:
    union = _Needs()
    for part in parts:
        union |= part
    return union


def _find_path_root(node: nodes.Node) -> tuple[str | None, str | None]:
    """Return the name that a path starts with, and its first member if that is constant."""
    path, _ = split_path(node)
    if path is None:
        return None, None
    return _split_root(path)


def _split_root(path: Path) -> tuple[str, str | None]:
    root = str(path[0])
    if len(path) == 1:
        return root, None
    return root, str(path[1])


def cut_template(
    template: Template | str,
    *,
    own: str | None,
    steps: Collection[str],
    stable: Collection[str] = NO_NAMES,
    payload: frozenset[str] = OWN_PAYLOAD,
) -> CutTemplate:
    """Replace the parts of a template that need a payload by selections.

    See the module's docstring.
    """
    return _cut_cached(ensure_parsed(template), own, frozenset(steps), frozenset(stable), payload)


@lru_cache(maxsize=4096)
def _cut_cached(
    template: Template,
    own: str | None,
    steps: frozenset[str],
    stable: frozenset[str],
    payload: frozenset[str],
) -> CutTemplate:
    if template.tree is None:
        return CutTemplate(template, (), NO_NAMES, False)
    cutter = _Cutter(own, steps, stable, payload)
    try:
        body, _ = cutter.cut_statements(template.tree.body, NO_NAMES)
    except _Uncuttable:
        return CutTemplate(template, (), find_names(template), True)
    if not cutter.selections_by_id:
        return CutTemplate(template, (), find_names(template), False)
    selections = tuple(cutter.selections_by_id.values())
    rest = compile_tree(template.source, nodes.Template(body, lineno=1), selections)
    return CutTemplate(rest, rest.selections, find_names(rest), False)


def makes_list_or_map(template: Template) -> bool:
    """Whether the template is an expression that writes out a list or a map: `{{ [a, b] }}`."""
    return isinstance(template.expression, nodes.List | nodes.Dict | nodes.Tuple)


def write_expression(value: object) -> str | None:
    """Write a list or map of templates as one expression.

    None if a template in it is no expression.
    """
    match value:
        case str():
            template = parse(value)
            if template.is_literal:
                return write_literal(value)
            if template.expression is None:
                return None
            return unparse(template.expression)
        case list():
            parts = [write_expression(part) for part in value]
            expressions = [part for part in parts if part is not None]
            if len(expressions) < len(parts):
                return None
            return f"[{', '.join(expressions)}]"
        case dict():
            values = {
                write_literal(str(key)): write_expression(part) for key, part in value.items()
            }
            if None in values.values():
                return None
            pairs = [f"{key}: {expression}" for key, expression in values.items()]
            return "{" + ", ".join(pairs) + "}"
        case None | bool() | int() | float():
            return write_literal(value)
        case _:
            return None
