"""Static analysis of templates: the names and paths they use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from jinja2 import nodes

from noetl.template.model import Template
from noetl.template.parsing import parse

Path: TypeAlias = tuple[str | int, ...]

NO_NAMES: frozenset[str] = frozenset()


@dataclass(slots=True)
class PathUse:
    path: Path
    may_be_missing: (
        bool  # it may be missing, because the template only tests it or gives it a default
    )


@dataclass(slots=True)
class UseCollector:
    """Collects the paths that a template uses, in order of evaluation.

    `bound` are the names that the template has set so far. A name that only one branch of an `if`
    sets is not bound afterwards, because its value may come from the scope.
    """

    found: list[PathUse] = field(default_factory=list)

    def walk_body(self, body: list[nodes.Node], bound: frozenset[str]) -> frozenset[str]:
        for node in body:
            bound = self.walk_statement(node, bound)
        return bound

    def walk_statement(self, node: nodes.Node, bound: frozenset[str]) -> frozenset[str]:
        match node:
            case nodes.Assign():
                self.walk_expression(node.node, bound)
                return bound | find_targets(node.target)
            case nodes.For():
                self.walk_expression(node.iter, bound)
                inner = bound | find_targets(node.target)
                if node.test is not None:
                    self.walk_expression(node.test, inner)
                self.walk_body(node.body, inner | {"loop"})
                self.walk_body(node.else_, bound)
                return bound
            case nodes.If():
                self.walk_expression(node.test, bound)
                after = [self.walk_body(node.body, bound)]
                for other in node.elif_:
                    self.walk_expression(other.test, bound)
                    after.append(self.walk_body(other.body, bound))
                after.append(self.walk_body(node.else_, bound))
                return frozenset.intersection(*after)
            case _:
                for child in node.iter_child_nodes():
                    self.walk_expression(child, bound)
                return bound

    def walk_expression(
        self,
        node: nodes.Node,
        bound: frozenset[str],
        asked: bool = False,
    ) -> None:
        path, rest = split_path(node)
        if path is not None:
            if path[0] not in bound:
                self.found.append(PathUse(path, asked))
            for child in rest:
                self.walk_expression(child, bound)
            return
        match node:
            case nodes.Call(node=nodes.Name()):
                children = iter([*node.args, *node.kwargs])
            case nodes.Call(node=nodes.Getattr() as called):
                children = iter([called.node, *node.args, *node.kwargs])
            case nodes.Test(name="defined" | "undefined") | nodes.Filter(name="default" | "d"):
                assert node.node is not None
                self.walk_expression(node.node, bound, asked=True)
                children = iter([*node.args, *node.kwargs])
            case nodes.Getattr():
                self.walk_expression(node.node, bound, asked)
                return
            case _:
                children = node.iter_child_nodes()
        for child in children:
            self.walk_expression(child, bound)


def find_targets(target: nodes.Node) -> frozenset[str]:
    if isinstance(target, nodes.Name):
        return frozenset({target.name})
    return frozenset(name.name for name in target.find_all(nodes.Name))


def split_path(node: nodes.Node) -> tuple[Path | None, list[nodes.Node]]:
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
def _collect_uses(template: Template) -> tuple[PathUse, ...]:
    if template.tree is None:
        return ()
    uses = UseCollector()
    uses.walk_body(template.tree.body, NO_NAMES)
    return tuple(uses.found)


def find_names(template: Template | str) -> frozenset[str]:
    """Return the root names that the template reads from its scope."""
    uses = _collect_uses(ensure_parsed(template))
    return frozenset(str(use.path[0]) for use in uses)


def find_paths(template: Template | str) -> frozenset[Path]:
    """Return the paths that the template reads from its scope, up to the first computed key."""
    uses = _collect_uses(ensure_parsed(template))
    return frozenset(use.path for use in uses)


def find_required_paths(template: Template | str) -> frozenset[Path]:
    """Return the paths that must exist. Leaves out those that the template only tests."""
    uses = _collect_uses(ensure_parsed(template))
    return frozenset(use.path for use in uses if not use.may_be_missing)


def find_tested_paths(template: Template | str) -> frozenset[Path]:
    """Return the paths that may be missing, because the template tests them or gives a default."""
    uses = _collect_uses(ensure_parsed(template))
    return frozenset(use.path for use in uses if use.may_be_missing)


def find_undefined_names(template: Template | str, known: Collection[str]) -> list[str]:
    """Return the names that the template uses and nothing defines. Names it only tests are fine."""
    required = {str(path[0]) for path in find_required_paths(template)}
    return sorted(required - set(known))


def ensure_parsed(template: Template | str) -> Template:
    if isinstance(template, str):
        return parse(template)
    return template
