"""What the checks know about a document as a whole, read tolerantly: anything may have the wrong type."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from noetl.playbook.dialect.editor import Node, maps
from noetl.playbook.functions import GLOBALS

RESERVED = frozenset({
    "ctx", "vars", "input", "args", "iter", "loop", "output", "outcome", "response", "result", "error", "event", "step",
    "workload", "keychain", "execution_id", "execution", "job", "catalog", "results", "_prev", "_task", "_attempt",
    "_index", "true", "false", "none", "and", "or", "not", "is", "in", "if", "else",
})  # fmt: skip

EVERYWHERE = frozenset({"workload", "ctx", "vars", "execution_id", "execution", "job", "catalog"})


def text(node: Any, key: str) -> str | None:
    value = node.get(key) if isinstance(node, dict) else None
    return value if isinstance(value, str) else None


def child(node: Any, *path: str) -> Node:
    """The mapping at a path; an empty one when something else is there."""
    for name in path:
        node = node.get(name) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


@dataclass(frozen=True)
class World:
    document: Node
    lines: list[str]

    @cached_property
    def steps(self) -> list[Node]:
        return maps(self.document.get("workflow"))

    @cached_property
    def step_names(self) -> list[str]:
        return [name for step in self.steps if (name := text(step, "step")) is not None]

    @cached_property
    def known_steps(self) -> frozenset[str]:
        return frozenset(self.step_names)

    @cached_property
    def everywhere(self) -> frozenset[str]:
        """Names that every template may use."""
        return EVERYWHERE | GLOBALS.keys() | self.known_steps | set(self.workload)

    @cached_property
    def workload(self) -> list[str]:
        return list(child(self.document, "workload"))

    @cached_property
    def keychain(self) -> list[str]:
        return [name for entry in maps(self.document.get("keychain")) if (name := text(entry, "name")) is not None]

    @cached_property
    def workbook(self) -> list[str]:
        return [name for entry in maps(self.document.get("workbook")) if (name := text(entry, "name")) is not None]

    @cached_property
    def iterators(self) -> list[str]:
        return [text(step["loop"], "iterator") or "item" for step in self.steps if isinstance(step.get("loop"), dict)]

    @cached_property
    def assigned(self) -> frozenset[str]:
        """Names that something sets in `ctx`."""
        return frozenset(name for names in self._assignments() for name in names)

    def _assignments(self) -> Iterator[Iterator[str]]:
        for step in self.steps:
            yield _ctx_names(step)
            for arc in maps(child(step, "next").get("arcs")):
                yield _ctx_names(arc)
            for task in maps(step.get("tool")):
                yield from task_assignments(task)
        for entry in maps(self.document.get("workbook")):
            yield from task_assignments(child(entry, "tool"))


def task_assignments(task: Node) -> Iterator[Iterator[str]]:
    yield _ctx_names(task)
    for rule in maps(child(task, "spec", "policy").get("rules")):
        yield _ctx_names(child(rule, "then"))
    into = text(child(task, "spec", "paginate", "collect"), "into")
    if into is not None:
        yield iter([into.removeprefix("ctx.").split(".")[0]])


def _ctx_names(node: Node) -> Iterator[str]:
    for name in child(node, "set"):
        if name.startswith("ctx.") or "." not in name:
            yield name.removeprefix("ctx.").split(".")[0]


def tasks_of(step: Node) -> list[Node]:
    return maps(step.get("tool"))


def named(value: Any) -> str | None:
    """A name that is written out rather than computed."""
    return value if isinstance(value, str) and "{{" not in value and "{%" not in value else None
