"""What the checks know about a document as a whole. It is read tolerantly: anything may have the
wrong type.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from noetl.playbook.dialect.editor import Node, list_maps
from noetl.template.scopes import (
    ACTIVATION_NAMES,
    COMMON_NAMES,
    LOOP_ITEM_NAMES,
    OUTCOME_NAMES,
    PIPELINE_NAMES,
)

RESERVED = (
    (
        COMMON_NAMES
        | OUTCOME_NAMES
        | ACTIVATION_NAMES
        | PIPELINE_NAMES
        | LOOP_ITEM_NAMES
        | {"true", "false", "none"}
    )
    | {"and", "or", "not", "is", "in", "if", "else"}
) - {"loop_index"}  # an older spelling; a step of that name hides it


def get_text(node: Any, key: str) -> str | None:
    """The member of a mapping if it is text."""
    value = node.get(key) if isinstance(node, dict) else None
    return value if isinstance(value, str) else None


def get_texts(nodes: Iterable[Node], key: str) -> list[str]:
    """`text` of each mapping that has one."""
    values = [get_text(node, key) for node in nodes]
    return [value for value in values if value is not None]


def get_child(node: Any, *path: str) -> Node:
    """The mapping at a path; an empty one if anything else is there."""
    for name in path:
        if not isinstance(node, dict):
            return {}
        node = node.get(name)
    if not isinstance(node, dict):
        return {}
    return node


@dataclass(frozen=True)
class DocumentFacts:
    document: Node
    lines: list[str]

    @cached_property
    def steps(self) -> list[Node]:
        return list_maps(self.document.get("workflow"))

    @cached_property
    def step_names(self) -> list[str]:
        return get_texts(self.steps, "step")

    @cached_property
    def known_steps(self) -> frozenset[str]:
        return frozenset(self.step_names)

    @cached_property
    def shared_names(self) -> frozenset[str]:
        """Names of this playbook that the templates of its steps may use."""
        return self.known_steps | set(self.workload_keys)

    @cached_property
    def workload_keys(self) -> list[str]:
        return list(get_child(self.document, "workload"))

    @cached_property
    def keychain_entries(self) -> list[str]:
        return get_texts(list_maps(self.document.get("keychain")), "name")

    @cached_property
    def workbook_tasks(self) -> list[str]:
        return get_texts(list_maps(self.document.get("workbook")), "name")

    @cached_property
    def iterator_names(self) -> list[str]:
        loops = list_maps([step.get("loop") for step in self.steps])
        return [get_text(loop, "iterator") or "item" for loop in loops]

    @cached_property
    def assigned_names(self) -> frozenset[str]:
        """Names that something sets in `ctx`."""
        return frozenset(
            _take_first_name(name)
            for name in self._assignment_targets
            if name.startswith("ctx.") or "." not in name
        )

    @cached_property
    def assigned_state(self) -> frozenset[str]:
        """Names that something sets in `state`."""
        return frozenset(
            name.split(".")[1] for name in self._assignment_targets if name.startswith("state.")
        )

    @cached_property
    def hides_state(self) -> bool:
        """Whether the playbook uses the name `state` for something else."""
        return "state" in self.workload_keys or "state" in self.known_steps

    @cached_property
    def scratch_names(self) -> frozenset[str]:
        """Names that something sets in `iter` or `step`."""
        return frozenset(
            _take_first_name(name)
            for name in self._assignment_targets
            if name.startswith(("iter.", "step."))
        )

    @cached_property
    def _assignment_targets(self) -> frozenset[str]:
        """The targets of all assignments, as they are written."""
        return frozenset(self._iterate_targets())

    def _iterate_targets(self) -> Iterator[str]:
        for step in self.steps:
            yield from get_child(step, "set")
            for arc in list_maps(get_child(step, "next").get("arcs")):
                yield from get_child(arc, "set")
            for task in list_maps(step.get("tool")):
                yield from iterate_task_targets(task)
        for entry in list_maps(self.document.get("workbook")):
            yield from iterate_task_targets(get_child(entry, "tool"))


def iterate_task_targets(task: Node) -> Iterator[str]:
    yield from get_child(task, "set")
    for rule in list_maps(get_child(task, "spec", "policy").get("rules")):
        yield from get_child(get_child(rule, "then"), "set")
    into = get_text(get_child(task, "spec", "paginate", "collect"), "into")
    if into is not None:
        yield into


def _take_first_name(target: str) -> str:
    """The name below the root: `total` of `ctx.total.sum`."""
    for root in ("ctx.", "iter.", "step."):
        target = target.removeprefix(root)
    return target.split(".")[0]


def list_tasks(step: Node) -> list[Node]:
    return list_maps(step.get("tool"))


def get_literal(value: Any) -> str | None:
    """A name that is written out; None if it is computed by a template."""
    if not isinstance(value, str) or "{{" in value or "{%" in value:
        return None
    return value
