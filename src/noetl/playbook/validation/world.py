"""What the checks know about a document as a whole. It is read tolerantly: anything may have the
wrong type.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from noetl.playbook.dialect.editor import Node, maps
from noetl.playbook.scopes import ACTIVATION, EVERYWHERE, ITERATION, OUTCOME, PIPELINE

RESERVED = (
    (EVERYWHERE | OUTCOME | ACTIVATION | PIPELINE | ITERATION | {"true", "false", "none"})
    | {"and", "or", "not", "is", "in", "if", "else"}
) - {"loop_index"}  # an older spelling; a step of that name hides it


def text(node: Any, key: str) -> str | None:
    """The member of a mapping if it is text."""
    value = node.get(key) if isinstance(node, dict) else None
    return value if isinstance(value, str) else None


def texts_of(nodes: Iterable[Node], key: str) -> list[str]:
    """`text` of each mapping that has one."""
    values = [text(node, key) for node in nodes]
    return [value for value in values if value is not None]


def child(node: Any, *path: str) -> Node:
    """The mapping at a path; an empty one if anything else is there."""
    for name in path:
        if not isinstance(node, dict):
            return {}
        node = node.get(name)
    if not isinstance(node, dict):
        return {}
    return node


@dataclass(frozen=True)
class World:
    document: Node
    lines: list[str]

    @cached_property
    def steps(self) -> list[Node]:
        return maps(self.document.get("workflow"))

    @cached_property
    def step_names(self) -> list[str]:
        return texts_of(self.steps, "step")

    @cached_property
    def known_steps(self) -> frozenset[str]:
        return frozenset(self.step_names)

    @cached_property
    def everywhere(self) -> frozenset[str]:
        """Names of this playbook that the templates of its steps may use."""
        return self.known_steps | set(self.workload)

    @cached_property
    def workload(self) -> list[str]:
        return list(child(self.document, "workload"))

    @cached_property
    def keychain(self) -> list[str]:
        return texts_of(maps(self.document.get("keychain")), "name")

    @cached_property
    def workbook(self) -> list[str]:
        return texts_of(maps(self.document.get("workbook")), "name")

    @cached_property
    def iterators(self) -> list[str]:
        loops = maps([step.get("loop") for step in self.steps])
        return [text(loop, "iterator") or "item" for loop in loops]

    @cached_property
    def assigned(self) -> frozenset[str]:
        """Names that something sets in `ctx`."""
        return frozenset(
            _first(name) for name in self._written if name.startswith("ctx.") or "." not in name
        )

    @cached_property
    def assigned_state(self) -> frozenset[str]:
        """Names that something sets in `state`."""
        return frozenset(name.split(".")[1] for name in self._written if name.startswith("state."))

    @cached_property
    def hides_state(self) -> bool:
        """Whether the playbook uses the name `state` for something else."""
        return "state" in self.workload or "state" in self.known_steps

    @cached_property
    def scratch(self) -> frozenset[str]:
        """Names that something sets in `iter` or `step`."""
        return frozenset(
            _first(name) for name in self._written if name.startswith(("iter.", "step."))
        )

    @cached_property
    def _written(self) -> frozenset[str]:
        """The targets of all assignments, as they are written."""
        return frozenset(self._targets())

    def _targets(self) -> Iterator[str]:
        for step in self.steps:
            yield from child(step, "set")
            for arc in maps(child(step, "next").get("arcs")):
                yield from child(arc, "set")
            for task in maps(step.get("tool")):
                yield from task_targets(task)
        for entry in maps(self.document.get("workbook")):
            yield from task_targets(child(entry, "tool"))


def task_targets(task: Node) -> Iterator[str]:
    yield from child(task, "set")
    for rule in maps(child(task, "spec", "policy").get("rules")):
        yield from child(child(rule, "then"), "set")
    into = text(child(task, "spec", "paginate", "collect"), "into")
    if into is not None:
        yield into


def _first(target: str) -> str:
    """The name below the root: `total` of `ctx.total.sum`."""
    for root in ("ctx.", "iter.", "step."):
        target = target.removeprefix(root)
    return target.split(".")[0]


def tasks_of(step: Node) -> list[Node]:
    return maps(step.get("tool"))


def named(value: Any) -> str | None:
    """A name that is written out; None if it is computed by a template."""
    if not isinstance(value, str) or "{{" in value or "{%" in value:
        return None
    return value
