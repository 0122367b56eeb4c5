"""The names that templates may use, in one table for validation, the server and workers.

The builders below make the parts of a scope that have fixed members. The server (`engine/expressions.py`)
and workers (`pipeline/scope/names.py`) call them to render. Validation calls `list_names_at` for the names at
a place; their members come from the same builders. `tests/property/test_scopes.py` renders every
name at every place and compares the two.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from noetl.model.envelope import SELECTIONS_KEY, Envelope
from noetl.model.errors import Failure
from noetl.template.values import OptionalMap

OUTCOME_NAMES = frozenset({"output", "outcome", "response", "result", "error"})
ACTIVATION_NAMES = frozenset({"input", "args", "step", "iter", "event", "_loop"})
PIPELINE_NAMES = frozenset({"_prev", "_task", "_attempt", "results", "keychain"})
LOOP_ITEM_NAMES = frozenset({"loop", "_index", "loop_index", "_loop"})
IDENTITY_NAMES = frozenset({"execution_id", "execution", "job", "catalog"})
COMMON_NAMES = IDENTITY_NAMES | {"workload", "ctx", "vars", "state"}
NAMES_PER_ITEM = LOOP_ITEM_NAMES | {
    "iter",
    "input",
    "args",
}  # their values differ between items of a loop
ENV_PREFIX = "NOETL_ENV_"  # of the server's variables that workload defaults may read as `env.*`

TOOL_FACTS = ("http", "pg", "py", "spark")  # members of `output` that only one kind of tool gives
# The members of `output` that the server knows, and what a template can read of a failed step.
ENVELOPE_MEMBERS = frozenset(
    {*TOOL_FACTS, "status", "ref", "error", "meta", "context", "stats", "row_count", "columns"}
)
OUTPUT_MEMBERS = ENVELOPE_MEMBERS | {"data"}


# ---- builders ----


FAILURE_MEMBERS = ("error", "failed_step")  # members of `execution` after a failure nothing handled


def build_identity(
    execution_id: str,
    path: str,
    version: int | None,
    status: str,
    failure: Failure | None = None,
    failed_step: str | None = None,
) -> dict[str, Any]:
    execution: dict[str, Any] = {"id": execution_id, "status": status}
    if failure is not None:
        execution |= {"error": failure.to_template_map(), "failed_step": failed_step}
    return {
        "execution_id": execution_id,
        "execution": OptionalMap(execution, *FAILURE_MEMBERS),
        "job": {
            "id": execution_id,
            "uuid": execution_id,
            "execution_id": execution_id,
            "path": path,
        },
        "catalog": {"path": path, "version": version},
    }


def build_handled_event(name: str, step: str, at: str) -> dict[str, Any]:
    return {"name": name, "step": step, "at": at}


def build_iteration(
    index: int,
    value: Any,
    iterator: str,
    size: int | None,
    loop_id: str,
    written: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the names of one item of a loop.

    `size` is None in a cursor loop, because it does not know its last item. `written` are the
    values that the item assigned to `iter`, and `parent`.
    """
    first = index == 0
    loop: dict[str, Any] = {"index": index, "first": first, "done": False}
    item: dict[str, Any] = {"index": index, "_index": index, "_first": first}
    if size is not None:
        last = index == size - 1
        loop |= {"last": last, "length": size}
        item["_last"] = last
    return {
        iterator: value,
        "iter": {**item, iterator: value, **written},
        "loop": loop,
        "_index": index,
        "loop_index": index,
        "_loop": {"loop_id": loop_id, "current_index": index, "current_item": value},
    }


def build_ended_loop(event: str, outcome: Envelope | None) -> dict[str, Any]:
    """Build `loop` for the step's `set` and router. A loop that failed is not done."""
    length = 0
    if outcome is not None:
        stats = outcome.context.get("stats")
        if isinstance(stats, dict):
            length = stats["total"]
    return {"done": event == "loop.done", "length": length}


def build_outer_iteration(outer: Mapping[str, Any]) -> dict[str, Any]:
    """Build `_loop` for a child execution: the iteration that started it, also in `iter.parent`."""
    loop = {"loop_id": outer.get("loop_id"), "current_index": outer.get("index")}
    items = [value for name, value in outer.items() if name not in ("index", "parent", "loop_id")]
    if items:
        loop["current_item"] = items[0]
    return loop


def build_output_facts(envelope: Envelope) -> dict[str, Any]:
    """Build `output` without its data. Facts that the tool did not give are left out."""
    context = {name: value for name, value in envelope.context.items() if name != SELECTIONS_KEY}
    facts = {name: context[name] for name in (*TOOL_FACTS, "stats") if name in context}
    if envelope.error is not None:
        facts["error"] = envelope.error.to_template_map()
    facts["status"] = "ok" if envelope.ok else envelope.status
    facts["ref"] = None if envelope.reference is None else envelope.reference.uri
    facts["meta"] = {} if envelope.meta is None else msgspec.to_builtins(envelope.meta)
    facts["context"] = context
    facts["row_count"] = context.get("row_count")
    facts["columns"] = context.get("columns")
    return facts


# ---- the names at each place ----


class ScopePlace(StrEnum):
    """The place of a template in a playbook."""

    WORKLOAD = "workload default"
    KEYCHAIN = "keychain"
    BEFORE = "admit, loop header, pool"
    CLAIM = "cursor claim"
    CALL = "input, tool fields, when, provenance"
    PAGE_SINK = "sink of a page"
    JUDGED = "policy, task set, pagination"
    AFTER = "step set, router"


class LoopKind(StrEnum):
    NONE = "none"
    COLLECTION = "collection"
    CURSOR = "cursor"


class VisibleNames(Struct, frozen=True):
    """Root names, and the members of each root for which all members are known."""

    roots: frozenset[str]
    members: Mapping[str, frozenset[str]]


class StepNames(Struct, frozen=True):
    """The names that a step adds to its scopes.

    `tasks` are those that may have a result at the template's place. Sinks never have one.
    """

    loop: LoopKind = LoopKind.NONE
    iterator: str = "item"
    tasks: frozenset[str] = frozenset()
    outcome: bool = True  # a task may have finished before this one
    scratch: frozenset[str] = frozenset()  # names that something writes below `iter.` or `step.`


def list_names_at(at: ScopePlace, step: StepNames | None = None) -> VisibleNames:
    """Return the names at a place. Leaves out workload keys, steps and functions."""
    step = step or StepNames()
    if at is ScopePlace.WORKLOAD:
        execution = frozenset(build_identity("", "", None, "")["execution"])
        return _make_visible(IDENTITY_NAMES | {"workload", "env"}, {"execution": execution})
    if at is ScopePlace.KEYCHAIN:
        return _make_visible(IDENTITY_NAMES | {"workload", "keychain"})
    before = COMMON_NAMES | ACTIVATION_NAMES
    scratch = {"iter": step.scratch | {"parent"}, "step": step.scratch}
    if at is ScopePlace.BEFORE:
        return _make_visible(before, scratch)
    if at is ScopePlace.CLAIM:
        roots = before | {"keychain", "loop"}
        return _make_visible(roots, {**scratch, "loop": frozenset({"frame"})})
    if at is ScopePlace.AFTER:
        roots = before | OUTCOME_NAMES
        if step.loop is not LoopKind.NONE:
            roots |= {"loop"}
        return _make_visible(roots, {**scratch, "loop": frozenset(build_ended_loop("", None))})
    roots = before | PIPELINE_NAMES | step.tasks
    return _list_pipeline_names(at, step, roots, {**scratch, "results": step.tasks})


def _list_pipeline_names(
    at: ScopePlace,
    step: StepNames,
    roots: frozenset[str],
    members: dict[str, frozenset[str]],
) -> VisibleNames:
    if at is not ScopePlace.CALL or step.outcome:
        roots |= OUTCOME_NAMES
    if step.loop is not LoopKind.NONE:
        size = 1 if step.loop is LoopKind.COLLECTION else None
        item = build_iteration(0, None, step.iterator, size, "", {"parent": {}})
        roots |= LOOP_ITEM_NAMES | {step.iterator}
        members["loop"] = frozenset(item["loop"])
        members["iter"] = frozenset(item["iter"]) | step.scratch
    return _make_visible(roots, members)


def _make_visible(
    roots: frozenset[str], own: Mapping[str, frozenset[str]] | None = None
) -> VisibleNames:
    known = {**_FIXED_MEMBERS, **(own or {})}
    members = {name: known[name] for name in known if name in roots}
    return VisibleNames(roots, members)


def _list_fixed_members() -> dict[str, frozenset[str]]:
    item = build_iteration(0, None, "item", 1, "", {})
    parts = {
        **build_identity("", "", None, ""),
        "event": build_handled_event("", "", ""),
        "_loop": item["_loop"],
    }
    fixed = {name: frozenset(part) for name, part in parts.items() if isinstance(part, dict)}
    execution = fixed["execution"] | set(FAILURE_MEMBERS)
    return {**fixed, "execution": execution, "output": OUTPUT_MEMBERS, "outcome": OUTPUT_MEMBERS}


_FIXED_MEMBERS = _list_fixed_members()
