"""How executions, events, credentials, schedules and hooks look in JSON. Ids are text, times ISO 8601 in UTC. Made with
msgspec: lists of them are long."""

from collections.abc import Iterable, Iterator
from typing import Any

from noetl.catalog.port import Sealed
from noetl.log.port import Projection, Recorded
from noetl.model import codec
from noetl.model.clock import iso
from noetl.model.events import CommandCompleted
from noetl.model.ids import Micros
from noetl.playbook import durations
from noetl.server.services.executions import state_of
from noetl.server.steps import steps_of
from noetl.triggers.port import Cron, Hook, Schedule


def time(at: Micros | None) -> str | None:
    return iso(at) if at else None


def execution(row: Projection) -> dict[str, Any]:
    return {
        "execution_id": row.execution_id,
        "path": row.path,
        "status": row.status,
        "started_at": time(row.started_at),
        "updated_at": time(row.updated_at),
        "ended_at": time(row.ended_at),
        "parent": row.parent,
        "retry_of": row.retry_of,
        "error": row.error,
        "step_count": row.steps,
        "last_seq": row.last_seq,
    }


def detailed(row: Projection) -> dict[str, Any]:
    """With what the projection's state says of every step."""
    state = state_of(row)
    shown = execution(row)
    if state is None:
        return {**shown, "version": None, "playbook": None, "failure": None, "steps": {}}
    failure = state.failure if state.status == "failed" else None
    return {
        **shown,
        "version": state.version,
        "playbook": state.playbook,
        "failure": None if failure is None else {**failure.shown(), "step": state.failed_step},
        "steps": {name: {"status": step.status, "runs": step.runs} for name, step in steps_of(state).items()},
    }


def event(recorded: Recorded, older: str | None = None) -> dict[str, Any]:
    """`data` is the event as the log has it; under an older name, `of` says what it is a view of."""
    fact = recorded.event
    shown: dict[str, Any] = {
        "seq": recorded.seq,
        "execution_id": recorded.execution_id,
        "type": older or fact.type,
        "at": iso(fact.at),
        "emitter": fact.emitter,
        "key": fact.key,
        "data": fact,
    }
    if older is not None:
        shown["of"] = fact.type
    return shown


def older_names(recorded: Recorded) -> tuple[str, ...]:
    """Names of the older documents for this event; its own when they have none for it."""
    fact = recorded.event
    names = fact.older
    if isinstance(fact, CommandCompleted) and fact.items is None:
        names = tuple(name for name in names if not name.startswith("loop."))
    return names or (fact.type,)


def older_events(page: Iterable[Recorded], types: frozenset[str]) -> Iterator[dict[str, Any]]:
    for recorded in page:
        for name in older_names(recorded):
            if not types or name in types:
                yield event(recorded, older=name)


def encode(value: Any) -> bytes:
    return codec.encode(value)


def credential(row: Sealed) -> dict[str, Any]:
    """Without its value."""
    return {"name": row.name, "kind": row.kind, "created_at": iso(row.created_at), "changed_at": iso(row.changed_at)}


def schedule(row: Schedule) -> dict[str, Any]:
    cron, every = (row.rule, None) if isinstance(row.rule, Cron) else (None, row.rule)
    return {
        "name": row.name,
        "path": row.path,
        "version": row.version,
        "cron": cron and cron.expression,
        "timezone": cron and cron.zone,
        "every": every and durations.spelled(every.interval),
        "payload": row.payload,
        "catch_up": row.catch_up,
        "overlap": row.overlap,
        "paused": row.paused,
        "next_at": time(row.next_at),
        "last_at": time(row.last_at),
        "last_execution": row.last_execution,
        "waiting": [iso(slot) for slot in row.waiting],
        "skipped": row.skipped,
        "error": row.error,
        "created_at": iso(row.created_at),
        "changed_at": iso(row.changed_at),
    }


def hook(row: Hook) -> dict[str, Any]:
    return {
        "name": row.name,
        "path": row.path,
        "version": row.version,
        "into": row.into,
        "secret": row.secret,
        "signature_header": row.signature_header,
        "key_header": row.key_header,
        "created_at": iso(row.created_at),
        "changed_at": iso(row.changed_at),
    }
