"""The inbox in Postgres. Starts that arrive together share a statement."""

from pathlib import Path
from typing import Any

import msgspec

from noetl.log.columns import (
    RefRow,
    make_lifetime_row,
    make_ref_row,
    split_message_columns,
    to_execution_id,
)
from noetl.log.events.limits import check_size
from noetl.log.inbox.port import DueTimer, InboxRow, MessageState
from noetl.model import codec
from noetl.model.errors import InvalidInput
from noetl.model.events import Ending
from noetl.model.ids import ExecutionId, Micros, Tenant, TimerId, shard_of
from noetl.model.messages import Message, Report, Start, StoredRef, make_stored_key
from noetl.postgres.arrays import format_numbers
from noetl.postgres.pool import CallBatcher, Database
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("inbox.sql"))
_REF_COLUMNS = [name for name in RefRow.__struct_fields__ if name != "part"]
MAX_MESSAGE_BYTES = 32 * 1024  # bytes of a message in the inbox: a report holds an event
MAX_STORED_WORKLOAD_BYTES = 1024 * 1024


class InboxPostgres:
    def __init__(self, database: Database, shards: int) -> None:
        self._main = database.main
        self._background = database.background
        self._shards = shards
        self._starts = CallBatcher(self._start_batch, limit=MAX_STORED_WORKLOAD_BYTES)

    async def read_messages(
        self, shards: list[int], limit: int, skip: frozenset[ExecutionId] = frozenset()
    ) -> list[InboxRow]:
        rows = await self._background.read(
            _SQL["read_messages"],
            shards=format_numbers(shards),
            limit=limit,
            skip=[int(execution_id) for execution_id in skip],
        )
        return [
            InboxRow(
                row["inbox_id"],
                row["shard"],
                to_execution_id(row["execution_id"]),
                codec.decode_message(row["body"]),
            )
            for row in rows
        ]

    async def read_due_timers(self, shards: list[int], limit: int) -> list[DueTimer]:
        rows = await self._background.read(
            _SQL["read_due_timers"], shards=format_numbers(shards), limit=limit
        )
        return [
            DueTimer(to_execution_id(row["execution_id"]), TimerId(row["timer_id"])) for row in rows
        ]

    async def find_next_timer(self, shards: list[int]) -> Micros | None:
        (row,) = await self._background.read(_SQL["find_next_timer"], shards=format_numbers(shards))
        due: Micros | None = row["due"]
        return due

    async def start_execution(self, start: Start, workload: dict[str, Any]) -> ExecutionId:
        data = codec.encode(workload)
        if len(data) > MAX_STORED_WORKLOAD_BYTES:
            raise InvalidInput(
                f"the workload is {len(data)} bytes",
                hint=f"at most {MAX_STORED_WORKLOAD_BYTES}: pass references",
            )
        return await self._starts((start, data.decode()), weight=len(data))

    async def _start_batch(self, requests: list[tuple[Start, str]]) -> list[ExecutionId]:
        """Start several executions; a request is a start and its encoded workload."""
        starts = [start for start, _ in requests]
        rows = await self._main.write(
            _SQL["start_execution"],
            execution_id=[int(start.execution_id) for start in starts],
            shard=[shard_of(start.execution_id, self._shards) for start in starts],
            tenant=[start.tenant for start in starts],
            key=[start.stored_key for start in starts],
            playbook=[start.playbook for start in starts],
            workload=[workload for _, workload in requests],
            body=[codec.encode(start) for start in starts],
        )
        started = {row["n"]: to_execution_id(row["execution_id"]) for row in rows}
        return [started[number] for number in range(1, len(requests) + 1)]

    async def find_started(self, tenant: Tenant, start_key: str) -> ExecutionId | None:
        rows = await self._main.read(
            _SQL["find_started"], tenant=tenant, key=make_stored_key(start_key)
        )
        return to_execution_id(rows[0]["execution_id"]) if rows else None

    async def post_message(self, execution_id: ExecutionId, message: Message) -> bool:
        body = codec.encode(message)
        if len(body) > MAX_MESSAGE_BYTES:
            raise InvalidInput(
                f"the message is {len(body)} bytes",
                hint=f"at most {MAX_MESSAGE_BYTES}: pass references",
            )
        kind, command = split_message_columns(message)
        rows = await self._main.write(
            _SQL["post_message"],
            shard=shard_of(execution_id, self._shards),
            execution_id=int(execution_id),
            key=message.key,
            kind=kind,
            command_id=command,
            body=body,
        )
        return bool(rows)

    async def accept_report(self, tenant: Tenant, report: Report) -> bool:
        check_size(report.event)
        (row,) = await self._main.write(
            _SQL["accept_report"],
            tenant=tenant,
            execution_id=int(report.execution_id),
            command_id=report.command_id,
            attempt=report.attempt,
            event_key=report.event.key,
            report_key=report.key,
            ends=isinstance(report.event, Ending),
            body=codec.encode(msgspec.structs.replace(report, refs=())),
            **_encode_references(report.refs),
        )
        return bool(row["accepted"])

    async def find_message(self, execution_id: ExecutionId, key: str) -> MessageState:
        (row,) = await self._main.read(
            _SQL["find_message"],
            execution_id=int(execution_id),
            key=key,
        )
        if row["seq"] is not None:
            return MessageState(seq=row["seq"])
        return MessageState(waiting=row["waiting"])


def _encode_references(refs: tuple[StoredRef, ...]) -> dict[str, list[Any]]:
    """The references of a report and their lifetimes, as columns."""
    rows = [make_ref_row(ref, part=1) for ref in refs]
    columns: dict[str, list[Any]] = {
        f"r_{name}": [getattr(row, name) for row in rows] for name in _REF_COLUMNS
    }
    columns |= {"l_ref": [], "l_scope": [], "l_ttl": []}
    for ref in refs:
        if ref.lifetime is not None:
            for name, value in make_lifetime_row(ref.reference, ref.lifetime).items():
                columns[f"l_{name}"].append(value)
    return columns
