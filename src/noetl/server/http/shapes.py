"""The JSON of executions, events, credentials, schedules, hooks and results.

Ids are text, times are ISO 8601 in UTC. These are plain dicts that msgspec encodes, because lists
of them are long and pydantic would be slower.
"""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, get_args

import msgspec

from noetl.catalog.port import SealedCredential
from noetl.engine import playbook_state
from noetl.log.events.port import RecordedEvent
from noetl.log.lineage.port import TracedReference
from noetl.log.playbook_state.port import StateRow
from noetl.log.projections.port import Projection
from noetl.model.clock import format_iso
from noetl.model.errors import InvalidInput
from noetl.model.events import CommandCompleted, CommandFailed, CommandIssued, Event
from noetl.model.ids import ExecutionId, Micros
from noetl.model.reference import Lifetime, Reference, parse_result_key, parse_uri
from noetl.playbook import durations
from noetl.server.executions.details import ExecutionDetail
from noetl.server.executions.service import decode_row_state
from noetl.server.executions.steps import summarize_steps
from noetl.server.results.lineage import LineageSource, Trace
from noetl.server.results.service import ShownResult
from noetl.server.results.usage import Usage
from noetl.triggers.port import Cron, Hook, Schedule

TOOL_STARTED_NAMES = frozenset({"tool.started", "action_started"})
ITERATION_EVENT_NAMES = frozenset(
    {"loop.item", "loop.iteration.started", "loop.iteration.finished"}
)


def format_time_or_none(at: Micros | None) -> str | None:
    return format_iso(at) if at else None


def dump_execution(row: Projection) -> dict[str, Any]:
    return {
        "execution_id": row.execution_id,
        "path": row.path,
        "status": row.status,
        "started_at": format_time_or_none(row.started_at),
        "updated_at": format_time_or_none(row.updated_at),
        "ended_at": format_time_or_none(row.ended_at),
        "parent": row.parent,
        "retry_of": row.retry_of,
        "error": row.error,
        "step_count": row.steps,
        "recovered": row.recovered,
        "last_seq": row.last_seq,
    }


def dump_detail(found: ExecutionDetail) -> dict[str, Any]:
    """An execution with its steps, as the projection's state has them."""
    state = decode_row_state(found.row)
    cause = None if found.cause is None else found.cause.to_dict()
    shown = dump_execution(found.row) | {
        "workload": found.workload,
        "children": found.children.to_dict(),
        "cause": cause,
    }
    if state is None:
        without_state: dict[str, Any] = {
            "by": None,
            "version": None,
            "from_step": None,
            "playbook": None,
            "failure": None,
            "steps": {},
            "recoveries": [],
            "state": {},
        }
        return {**shown, **without_state}
    failure: dict[str, Any] | None = None
    if state.status == "failed" and state.failure is not None:
        failure = {**state.failure.to_template_map(), "step": state.failed_step}
    return {
        **shown,
        "by": state.by,
        "version": state.version,
        "from_step": state.from_step,
        "playbook": state.playbook,
        "failure": failure,
        "steps": {name: step.to_dict() for name, step in summarize_steps(state).items()},
        "recoveries": [msgspec.structs.asdict(recovery) for recovery in state.recoveries],
        "state": playbook_state.describe_playbook_state(state),
    }


def dump_event(recorded: RecordedEvent, older: str | None = None) -> dict[str, Any]:
    """An event; `data` is the event as the log has it. Under an `older` name, `of` is its type."""
    fact = recorded.event
    at = _started_at(fact) if older in TOOL_STARTED_NAMES else fact.at
    shown: dict[str, Any] = {
        "seq": recorded.seq,
        "execution_id": recorded.execution_id,
        "type": older or fact.type,
        "at": format_iso(at),
        "emitter": fact.emitter,
        "key": fact.key,
        "data": fact,
    }
    if older is not None:
        shown["of"] = fact.type
    return shown


def list_older_names(fact: Event) -> tuple[str, ...]:
    """The names of this event in the older documents; its type if they have none for it.

    An event with the start time of its tool also stands for that start, because `command.started`
    is recorded only for slow tools.
    """
    names = fact.older or (fact.type,)
    if not _is_of_loop(fact):
        names = tuple(name for name in names if name not in ITERATION_EVENT_NAMES)
    if not _started_at(fact):
        names = tuple(name for name in names if name not in TOOL_STARTED_NAMES)
    return names


def _is_of_loop(fact: Event) -> bool:
    if isinstance(fact, CommandIssued):
        return fact.kind in ("chunk", "frame")
    return isinstance(fact, CommandCompleted | CommandFailed) and fact.items is not None


def _started_at(fact: Event) -> Micros:
    return fact.started_at if isinstance(fact, CommandCompleted | CommandFailed) else 0


def check_event_types(named: frozenset[str], older: bool) -> None:
    """Refuse a name that no event has, instead of finding nothing."""
    known: set[str] = set()
    kinds: tuple[Any, ...] = get_args(Event)
    for kind in kinds:
        if older and kind.older:
            known.update(kind.older)
        else:
            known.add(kind.__struct_config__.tag)
    for name in sorted(named - known):
        close = get_close_matches(name, sorted(known), 1)
        hint = f"did you mean {close[0]}?" if close else "docs/events.md lists them"
        raise InvalidInput(f"no event has the type {name!r}", hint=hint)


def dump_older_events(
    page: Iterable[RecordedEvent], types: frozenset[str]
) -> Iterator[dict[str, Any]]:
    """The events under their older names; only of these types, if there are any."""
    for recorded in page:
        for name in list_older_names(recorded.event):
            if not types or name in types:
                yield dump_event(recorded, older=name)


def dump_credential(row: SealedCredential) -> dict[str, Any]:
    """A credential without its values."""
    return {
        "name": row.name,
        "kind": row.kind,
        "created_at": format_iso(row.created_at),
        "changed_at": format_iso(row.changed_at),
    }


def dump_state_value(row: StateRow) -> dict[str, Any]:
    return {
        "path": row.path,
        "name": row.name,
        "version": row.version,
        "value": row.value,
        "execution_id": row.execution_id,
        "seq": row.seq,
        "by": row.by,
        "at": format_iso(row.at),
    }


def dump_schedule(row: Schedule) -> dict[str, Any]:
    cron, timezone, every = None, None, None
    if isinstance(row.rule, Cron):
        cron, timezone = row.rule.expression, row.rule.zone
    else:
        every = durations.write_duration(row.rule.interval)
    return {
        "name": row.name,
        "path": row.path,
        "version": row.version,
        "cron": cron,
        "timezone": timezone,
        "every": every,
        "payload": row.payload,
        "catch_up": row.catch_up,
        "overlap": row.overlap,
        "paused": row.paused,
        "next_at": format_time_or_none(row.next_at),
        "last_at": format_time_or_none(row.last_at),
        "last_execution": row.last_execution,
        "waiting": [format_iso(slot) for slot in row.waiting],
        "skipped": row.skipped,
        "error": row.error,
        "created_at": format_iso(row.created_at),
        "changed_at": format_iso(row.changed_at),
    }


def dump_hook(row: Hook) -> dict[str, Any]:
    return {
        "name": row.name,
        "path": row.path,
        "version": row.version,
        "into": row.into,
        "secret": row.secret,
        "signature_header": row.signature_header,
        "key_header": row.key_header,
        "created_at": format_iso(row.created_at),
        "changed_at": format_iso(row.changed_at),
    }


def dump_result(execution_id: ExecutionId, step: str, found: ShownResult) -> dict[str, Any]:
    envelope = found.envelope
    parent = envelope.parent_ref
    lifetime = found.lifetime or Lifetime()
    return {
        "execution_id": execution_id,
        "step": step,
        "status": envelope.status,
        "reference": dump_reference(envelope.reference),
        "parent_ref": None if parent is None else parent.ref_id,
        "context": envelope.context,
        "error": None if envelope.error is None else envelope.error.to_template_map(),
        "meta": {} if found.meta is None else msgspec.to_builtins(found.meta),
        "preview": msgspec.to_builtins(found.preview),
        "scope": lifetime.scope,
        "ttl": None if lifetime.ttl is None else durations.write_duration(lifetime.ttl),
        "pinned": found.pinned,
    }


def dump_usage(found: Usage) -> dict[str, Any]:
    tiers = {used.tier: {"count": used.count, "bytes": used.bytes} for used in found.tiers}
    return {
        "execution_id": found.row.execution_id,
        "path": found.row.path,
        "status": found.row.status,
        "tiers": tiers,
        "count": sum(used.count for used in found.tiers),
        "bytes": sum(used.bytes for used in found.tiers),
        "expired": sum(used.expired for used in found.tiers),
        "pinned": list(found.pinned),
    }


def dump_trace(execution_id: ExecutionId, step: str, found: Trace) -> dict[str, Any]:
    return {
        "execution_id": execution_id,
        "step": step,
        "status": found.envelope.status,
        "reference": dump_reference(found.envelope.reference),
        "roots": list(found.roots),
        "nodes": [_dump_node(source) for source in found.sources],
        "edges": [edge for source in found.sources for edge in _dump_edges(source.traced)],
        "next": found.next,
    }


def dump_reference(found: Reference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "ref_id": found.ref_id,
        "uri": found.uri,
        "tier": found.type,
        "bytes": found.bytes,
        "rows": found.rows,
        "format": found.format,
        "sha256": found.sha256,
    }


def _dump_node(source: LineageSource) -> dict[str, Any]:
    traced = source.traced
    meta = source.meta
    where = parse_uri(traced.reference.uri)
    origin = parse_result_key(where.key)
    return {
        **(dump_reference(traced.reference) or {}),
        "depth": traced.depth,
        "execution_id": where.execution_id,
        "kind": where.kind,
        "step": where.step,
        "task": None if origin is None else origin.task,
        "command_id": None if origin is None else origin.command_id,
        "attempt": None if origin is None else origin.attempt,
        "at": format_iso(traced.at),
        "expired_at": format_time_or_none(traced.expired_at),
        "tool": None if meta is None else meta.tool,
        "input": None if meta is None else msgspec.to_builtins(meta.input),
        "provenance": {} if meta is None else meta.provenance,
    }


def _dump_edges(traced: TracedReference) -> Iterator[dict[str, Any]]:
    target = traced.reference.ref_id
    if traced.parent is not None:
        yield {"source": traced.parent, "target": target, "kind": "parent"}
    for source in traced.inputs:
        yield {"source": source, "target": target, "kind": "input"}
