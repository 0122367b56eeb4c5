"""The log in Postgres. Each method is one statement, so it is one transaction and one round trip.

Duties use the background pool, so neither a slow projection nor a long inbox delays an append or a
claim.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from noetl.log.cold import ColdEvents, HistoryFiles
from noetl.log.limits import check_size, encode_state
from noetl.log.playbook_state import PlaybookStatePostgres
from noetl.log.port import (
    MAX_BLOB_BYTES,
    MAX_LINEAGE_REFS,
    NO_PROGRESS,
    AppendBatch,
    ExecutionFilter,
    InboxRow,
    JudgedCounts,
    LogPart,
    MessageState,
    Outcome,
    PinnedExecution,
    Projection,
    QueueDepth,
    QueueEntry,
    RecordedChange,
    RecordedEvent,
    ReferenceLife,
    Renewal,
    ShardRows,
    StateRow,
    StepKey,
    StorageUsage,
    TracedReference,
    WorkerPresence,
    has_wildcard,
)
from noetl.log.writes import (
    AppendArguments,
    decode_command_row,
    join_event,
    make_lifetime_row,
    make_ref_row,
    split_message_columns,
)
from noetl.model import codec
from noetl.model.commands import Command
from noetl.model.decisions import AddPart
from noetl.model.errors import Conflict, InvalidInput, NoetlError, NotFound
from noetl.model.events import Ending
from noetl.model.exchange import LeaseKey
from noetl.model.ids import (
    CommandId,
    ExecutionId,
    Micros,
    RefId,
    Tenant,
    TimerId,
    get_first_id,
    shard_of,
)
from noetl.model.messages import Message, Report, Start, StoredRef
from noetl.model.playbook_state import StateValue
from noetl.model.reference import Lifetime, Reference, parse_uri
from noetl.postgres.arrays import format_documents, format_numbers, format_texts
from noetl.postgres.pool import CallBatcher, Database, RaisedBySqlFunction, Record, UniqueViolation
from noetl.postgres.queries import load_queries
from noetl.time_slice import TimeSlice

log = logging.getLogger(__name__)

_SQL = load_queries(Path(__file__).with_name("log.sql"))
_part = msgspec.json.Decoder(AddPart)

MAX_MESSAGE_BYTES = 32 * 1024  # bytes of a message in the inbox: a report holds an event
MAX_STORED_WORKLOAD_BYTES = 1024 * 1024
MAX_SWEPT_ROWS = 5_000  # finished rows deleted in one run
MAX_EXPIRED_REFS = 5_000  # references that expire in one run
NO_LIMIT = 2_147_483_647
LAST_ID = (1 << 63) - 1
PARTITIONS_AHEAD = 2
SWEEP_EVERY_RUNS = 20  # runs of `expire`: about ten seconds
PARTITIONS_EVERY_RUNS = 7_200  # about an hour


class LogPostgres:
    def __init__(
        self,
        database: Database,
        shards: int,
        sweep_every: int = SWEEP_EVERY_RUNS,
        lake: HistoryFiles | None = None,
        at_a_stretch: float | None = None,
    ) -> None:
        """`shards` must be the number that the database was created with; `migrate` returns it.

        `lake` holds the events that were moved to files. `at_a_stretch`: seconds of computing
        before other tasks get a turn.
        """
        self._main = database.main
        self._background = database.background
        self._shards = shards
        self._sweep_every = sweep_every
        self._starts = CallBatcher(self._start_batch, limit=MAX_STORED_WORKLOAD_BYTES)
        self._cold = ColdEvents(lake)
        self._state = PlaybookStatePostgres(database)
        self._time_slice_s = at_a_stretch
        self._runs = 0

    # -- the owner --

    async def append(self, batch: AppendBatch) -> list[Outcome]:
        """Append a batch. If a key is in the log already, the first statement fails as a whole; the
        second one says which part it belongs to.
        """
        if not batch.parts:
            return []
        writes = await AppendArguments.from_batch(batch, self._shards, self._time_slice_s)
        if not writes.has_repeated_keys():
            try:
                return await self._append_arguments(writes, check_keys=False)
            except UniqueViolation as error:
                if not str(error.table_name).startswith("event"):
                    raise NoetlError(
                        f"{error.table_name}: {error.detail}", hint="it was written already"
                    ) from error
        return await self._append_arguments(writes, check_keys=True)

    async def _append_arguments(
        self, writes: AppendArguments, *, check_keys: bool
    ) -> list[Outcome]:
        arguments = writes.encode_arguments(check_keys=check_keys)
        try:
            (answer,) = await self._main.write(_SQL["append"], *arguments)
        except RaisedBySqlFunction as error:
            raise NoetlError(str(error)) from error
        return writes.decode_outcomes(answer)

    async def inbox(
        self, shards: list[int], limit: int, skip: frozenset[ExecutionId] = frozenset()
    ) -> list[InboxRow]:
        rows = await self._background.read(
            _SQL["inbox"],
            shards=format_numbers(shards),
            limit=limit,
            skip=[int(execution_id) for execution_id in skip],
        )
        return [
            InboxRow(
                row["inbox_id"],
                row["shard"],
                _to_execution_id(row["execution_id"]),
                codec.decode_message(row["body"]),
            )
            for row in rows
        ]

    async def due_timers(self, shards: list[int], limit: int) -> list[tuple[ExecutionId, TimerId]]:
        rows = await self._background.read(
            _SQL["due_timers"], shards=format_numbers(shards), limit=limit
        )
        return [(_to_execution_id(row["execution_id"]), TimerId(row["timer_id"])) for row in rows]

    async def project(self, batch: list[ShardRows]) -> list[bool]:
        rows: list[Projection] = []
        for shard_rows in batch:
            if any(row.shard != shard_rows.shard for row in shard_rows.rows):
                raise NoetlError("a projection of another shard")
            rows += shard_rows.rows
        columns = await self._encode_columns(rows)
        (answer,) = await self._background.write(
            _SQL["project"],
            shard=format_numbers([shard_rows.shard for shard_rows in batch]),
            epoch=format_numbers([shard_rows.epoch for shard_rows in batch]),
            checkpoint=format_numbers([shard_rows.checkpoint for shard_rows in batch]),
            **columns,
        )
        if answer["ahead"] is not None:
            raise NoetlError(f"projection of {answer['ahead']} is ahead of the log")
        return [shard_rows.shard in answer["shards"] for shard_rows in batch]

    async def _encode_columns(self, rows: list[Projection]) -> dict[str, str]:
        time_slice = TimeSlice(self._time_slice_s)
        columns = {
            "of_shard": format_numbers([row.shard for row in rows]),
            "exec": format_texts([row.execution_id for row in rows]),
            "parent": format_texts([row.parent for row in rows]),
            "retry_of": format_texts([row.retry_of for row in rows]),
            "state": format_documents(
                [None if row.state is None else row.state.decode() for row in rows]
            ),
        }
        for name, write in _PLAIN_COLUMNS.items():
            await time_slice.pause_if_used_up()
            columns[name] = write([getattr(row, name) for row in rows])
        return columns

    # -- anyone --

    async def start(self, start: Start, workload: dict[str, Any]) -> ExecutionId:
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
            _SQL["start"],
            execution_id=[int(start.execution_id) for start in starts],
            shard=[shard_of(start.execution_id, self._shards) for start in starts],
            tenant=[start.tenant for start in starts],
            key=[start.stored_key for start in starts],
            playbook=[start.playbook for start in starts],
            workload=[workload for _, workload in requests],
            body=[codec.encode(start) for start in starts],
        )
        started = {row["n"]: _to_execution_id(row["execution_id"]) for row in rows}
        return [started[number] for number in range(1, len(requests) + 1)]

    async def post(self, execution_id: ExecutionId, message: Message) -> bool:
        body = codec.encode(message)
        if len(body) > MAX_MESSAGE_BYTES:
            raise InvalidInput(
                f"the message is {len(body)} bytes",
                hint=f"at most {MAX_MESSAGE_BYTES}: pass references",
            )
        kind, command = split_message_columns(message)
        rows = await self._main.write(
            _SQL["post"],
            shard=shard_of(execution_id, self._shards),
            execution_id=int(execution_id),
            key=message.key,
            kind=kind,
            command_id=command,
            body=body,
        )
        return bool(rows)

    async def accept(self, report: Report) -> bool:
        check_size(report.event)
        (row,) = await self._main.write(
            _SQL["accept"],
            execution_id=int(report.execution_id),
            command_id=report.command_id,
            attempt=report.attempt,
            event_key=report.event.key,
            report_key=report.key,
            ends=isinstance(report.event, Ending),
            body=codec.encode(msgspec.structs.replace(report, refs=())),
            **_make_ref_columns(report.refs),
        )
        return bool(row["accepted"])

    # -- readers --

    async def events(
        self, execution_id: ExecutionId, after: int = 0, limit: int = 10_000
    ) -> list[RecordedEvent]:
        rows = await self._main.read(
            _SQL["events"], execution_id=int(execution_id), after=after, limit=limit
        )
        if rows and rows[-1]["path"] is not None:
            moved = await self._cold.read_cold_events(rows[-1]["path"], execution_id)
            return [recorded for recorded in moved if recorded.seq > after][:limit]
        return [
            RecordedEvent(
                execution_id,
                row["shard"],
                row["seq"],
                row["epoch"],
                join_event(row["meta"], row["result"]),
            )
            for row in rows
        ]

    async def named_events(self, names: list[tuple[ExecutionId, str]]) -> list[RecordedEvent]:
        rows = await self._main.read(
            _SQL["named_events"],
            executions=[int(execution_id) for execution_id, _ in names],
            keys=[key for _, key in names],
        )
        found = [
            RecordedEvent(
                _to_execution_id(row["execution_id"]),
                row["shard"],
                row["seq"],
                row["epoch"],
                join_event(row["meta"], row["result"]),
            )
            for row in rows
        ]
        found_names = {(recorded.execution_id, recorded.event.key) for recorded in found}
        return found + await self._read_moved_events(set(names) - found_names)

    async def _read_moved_events(self, names: set[tuple[ExecutionId, str]]) -> list[RecordedEvent]:
        """Look up events that are not in the log in the files of moved events."""
        if not names:
            return []
        executions = [int(execution_id) for execution_id, _ in names]
        rows = await self._main.read(_SQL["moved"], executions=executions)
        found: list[RecordedEvent] = []
        for row in rows:
            events = await self._cold.read_cold_events(
                row["path"], _to_execution_id(row["execution_id"])
            )
            found += [event for event in events if (event.execution_id, event.event.key) in names]
        return found

    async def find_lost_history(self, limit: int) -> list[str]:
        rows = await self._background.read(_SQL["cold_files"], limit=limit)
        return await self._cold.find_unreadable([row["path"] for row in rows])

    async def follow(self, shard: int, after: int, limit: int) -> list[RecordedEvent]:
        rows = await self._background.read(_SQL["follow"], shard=shard, after=after, limit=limit)
        return [
            RecordedEvent(
                _to_execution_id(row["execution_id"]),
                shard,
                row["seq"],
                row["epoch"],
                join_event(row["meta"], row["result"]),
            )
            for row in rows
        ]

    async def changes(self, after: dict[int, int], limit: int) -> list[RecordedChange]:
        rows = await self._background.read(
            _SQL["changes"],
            shards=format_numbers(list(after)),
            after=format_numbers(list(after.values())),
            limit=limit,
        )
        return [
            RecordedChange(shard, seq, _to_execution_id(execution_id), events)
            for shard, seq, execution_id, events in rows
        ]

    async def parts(self, manifest: str) -> list[AddPart]:
        rows = await self._main.read(_SQL["parts"], manifest=manifest)
        return [_part.decode(row["body"]) for row in rows]

    async def last_seq(self, execution_id: ExecutionId) -> int:
        rows = await self._main.read(_SQL["last_seq"], execution_id=int(execution_id))
        return _read_first_value(rows, 0)

    async def read_pinned(self, execution_id: ExecutionId) -> PinnedExecution | None:
        rows = await self._main.read(_SQL["pins"], executions=[int(execution_id)])
        return _decode_pinned(rows[0]) if rows else None

    async def pins(self, execution_ids: list[ExecutionId]) -> dict[ExecutionId, PinnedExecution]:
        executions = [int(execution_id) for execution_id in execution_ids]
        rows = await self._main.read(_SQL["pins"], executions=executions)
        return {pinned.execution_id: pinned for pinned in map(_decode_pinned, rows)}

    async def pinned_playbooks(self) -> list[str]:
        """The playbooks of all executions. This reads every row, so it is for jobs."""
        rows = await self._background.read(_SQL["pinned_playbooks"])
        return [row["playbook"] for row in rows]

    async def projection(self, execution_id: ExecutionId) -> Projection | None:
        rows = await self._main.read(_SQL["projection"], execution_id=int(execution_id))
        return _decode_projection(rows[0]) if rows else None

    async def projections(self, tenant: Tenant, limit: int) -> list[Projection]:
        rows = await self._main.read(_SQL["projections"], tenant=tenant, limit=limit)
        return [_decode_projection(row) for row in rows]

    async def executions(
        self, tenant: Tenant, wanted: ExecutionFilter, before: ExecutionId | None, limit: int
    ) -> list[Projection]:
        path, pattern = wanted.path, None
        if has_wildcard(wanted.path):
            path, pattern = None, _make_like_pattern(wanted.path)
        first_possible = 0
        if wanted.since is not None:
            first_possible = get_first_id(wanted.since - MAX_START_DELAY_MICROS)
        rows = await self._main.read(
            _SQL["executions"],
            tenant=tenant,
            status=wanted.status,
            path=path,
            pattern=pattern,
            roots=wanted.roots,
            floor=first_possible,
            parent=_to_number(wanted.parent),
            since=wanted.since or 0,
            before=LAST_ID if before is None else int(before),
            limit=limit,
        )
        return [_decode_projection(row) for row in rows]

    async def child_counts(self, parent: ExecutionId) -> dict[str, int]:
        rows = await self._main.read(_SQL["child_counts"], parent=int(parent))
        return {row[0]: row[1] for row in rows}

    async def tenant_of(self, execution_id: ExecutionId) -> Tenant | None:
        rows = await self._main.read(_SQL["tenant_of"], execution_id=int(execution_id))
        return Tenant(rows[0]["tenant"]) if rows else None

    async def received(self, execution_id: ExecutionId, key: str) -> MessageState:
        (row,) = await self._main.read(
            _SQL["received"],
            execution_id=int(execution_id),
            key=key,
        )
        if row["seq"] is not None:
            return MessageState(seq=row["seq"])
        return MessageState(waiting=row["waiting"])

    async def checkpoint(self, shard: int) -> int:
        rows = await self._background.read(_SQL["checkpoint"], shard=shard)
        return _read_first_value(rows, 0)

    async def live(self, shard: int) -> list[ExecutionId]:
        rows = await self._background.read(_SQL["live"], shard=shard)
        return [_to_execution_id(row["execution_id"]) for row in rows]

    # -- state between executions --

    async def read_state(
        self, tenant: Tenant, path: str, names: list[str] | None = None
    ) -> list[StateRow]:
        return await self._state.read_state(tenant, path, names)

    async def list_state(
        self, tenant: Tenant, after: tuple[str, str], limit: int
    ) -> list[StateRow]:
        return await self._state.list_state(tenant, after, limit)

    async def state_history(
        self, tenant: Tenant, path: str, name: str, before: int, limit: int
    ) -> list[StateRow]:
        return await self._state.state_history(tenant, path, name, before, limit)

    async def put_state(
        self,
        tenant: Tenant,
        path: str,
        name: str,
        value: StateValue,
        expected: int | None,
        by: str | None,
    ) -> int:
        encoded = encode_state(name, value)
        return await self._state.put_state(tenant, path, name, encoded, expected, by)

    # -- small payloads --

    async def put_blob(self, reference: Reference, payload: bytes) -> None:
        if len(payload) > MAX_BLOB_BYTES:
            raise InvalidInput(
                f"the payload is {len(payload)} bytes",
                hint=f"at most {MAX_BLOB_BYTES}: larger ones go to files",
            )
        execution_id = parse_uri(reference.uri).execution_id
        written = await self._main.write(
            _SQL["put_blob"],
            ref_id=int(reference.ref_id),
            uri=reference.uri,
            payload=payload,
            execution_id=int(execution_id),
        )
        if written or await self.blob(reference.ref_id, reference.uri) == payload:
            return
        if await self.tenant_of(execution_id) is None:
            raise NotFound(f"no execution {execution_id}")
        raise Conflict(
            f"{reference.uri} holds another payload",
            hint="a result is written once; use another key",
        )

    async def blob(self, ref_id: RefId, uri: str) -> bytes | None:
        rows = await self._main.read(_SQL["blob"], ref_id=int(ref_id), uri=uri)
        return rows[0]["payload"] if rows else None

    async def orphans(self, execution_id: ExecutionId, uris: list[str]) -> list[str]:
        rows = await self._background.read(
            _SQL["orphans"], execution_id=int(execution_id), uris=uris
        )
        return [row["uri"] for row in rows]

    # -- how long results stay --

    async def judge(self, grace: Micros, retention: Micros | None, limit: int) -> JudgedCounts:
        (row,) = await self._background.write(
            _SQL["judge"], grace=grace, retention=retention, limit=limit, most=MAX_EXPIRED_REFS
        )
        return JudgedCounts(*row)

    async def lives(self, refs: list[RefId]) -> dict[RefId, ReferenceLife]:
        ref_ids = [int(ref_id) for ref_id in refs]
        rows = await self._main.read(_SQL["lives"], refs=ref_ids)
        return {RefId(str(row["ref_id"])): _decode_life(row) for row in rows}

    async def pin_results(self, places: list[StepKey]) -> None:
        await self._main.write(_SQL["pin_results"], **_make_place_columns(places))

    async def unpin_results(self, places: list[StepKey]) -> None:
        await self._main.write(_SQL["unpin_results"], **_make_place_columns(places))

    async def pinned_results(self, executions: list[ExecutionId]) -> list[StepKey]:
        rows = await self._main.read(
            _SQL["pinned_results"], executions=[int(execution_id) for execution_id in executions]
        )
        return [(_to_execution_id(row["execution_id"]), row["step"]) for row in rows]

    async def usage(self, executions: list[ExecutionId]) -> list[StorageUsage]:
        rows = await self._background.read(
            _SQL["usage"], executions=[int(execution_id) for execution_id in executions]
        )
        return [
            StorageUsage(
                _to_execution_id(row["execution_id"]),
                row["tier"],
                row["count"],
                row["bytes"],
                row["expired"],
            )
            for row in rows
        ]

    # -- lineage --

    async def lineage(
        self,
        tenant: Tenant,
        roots: list[RefId],
        depth: int,
        after: tuple[int, RefId] | None,
        limit: int,
    ) -> list[TracedReference]:
        after_depth, after_ref = -1, 0
        if after is not None:
            after_depth, after_ref = after[0], int(after[1])
        rows = await self._background.read(
            _SQL["lineage"],
            tenant=tenant,
            roots=[int(ref_id) for ref_id in roots],
            depth=depth,
            most=MAX_LINEAGE_REFS,
            after_depth=after_depth,
            after_ref=after_ref,
            limit=limit,
        )
        return [_decode_traced(row) for row in rows]

    # -- step logs --

    async def put_logs(self, parts: tuple[StoredRef, ...]) -> None:
        addresses = [parse_uri(part.reference.uri) for part in parts]
        await self._main.write(
            _SQL["put_logs"],
            execs=[int(address.execution_id) for address in addresses],
            steps=[address.step for address in addresses],
            refs=[int(part.reference.ref_id) for part in parts],
            uris=[part.reference.uri for part in parts],
            payloads=[part.payload or b"" for part in parts],
        )

    async def logs(
        self, execution_id: ExecutionId, step: str | None, after: int, limit: int
    ) -> list[LogPart]:
        rows = await self._main.read(
            _SQL["logs"], execution_id=int(execution_id), step=step, after=after, limit=limit
        )
        return [LogPart(*row) for row in rows]

    # -- the queue --

    async def claim(
        self, worker: str, pools: tuple[str, ...], limit: int, lease: Micros
    ) -> list[Command]:
        rows = await self._main.write(
            _SQL["claim"],
            worker=worker,
            pools=list(dict.fromkeys(pools)),
            limit=limit,
            lease=lease,
        )
        return [decode_command_row(*row) for row in rows]

    async def renew(
        self,
        worker: str,
        held: tuple[LeaseKey, ...],
        lease: Micros,
        progress: Mapping[LeaseKey, str] = NO_PROGRESS,
    ) -> Renewal:
        if not held:
            return Renewal()
        rows = await self._main.write(
            _SQL["renew"],
            worker=worker,
            commands=[key.command_id for key in held],
            held=[f"{key.command_id}:{key.attempt}" for key in held],
            progress=[progress.get(key) for key in held],
            lease=lease,
        )
        renewed = {
            LeaseKey(CommandId(row["command_id"]), row["attempt"]): row["cancel"] for row in rows
        }
        return Renewal(
            stop=tuple(key for key in held if renewed.get(key)),
            lost=tuple(key for key in held if key not in renewed),
        )

    async def leased(self, worker: str) -> list[Command]:
        rows = await self._main.read(_SQL["leased"], worker=worker)
        return [decode_command_row(*row) for row in rows]

    async def expire_leases(self, limit: int) -> int:
        (row,) = await self._background.write(_SQL["lose"], worker=None, limit=limit)
        if self._runs % self._sweep_every == 0:
            await self._background.write(_SQL["sweep"], limit=MAX_SWEPT_ROWS)
        if self._runs % PARTITIONS_EVERY_RUNS == 0:
            await self._background.write(_SQL["make_partitions"], ahead=PARTITIONS_AHEAD)
        self._runs += 1
        lost: int = row["lost"]
        return lost

    async def lose(self, worker: str) -> int:
        (row,) = await self._main.write(_SQL["lose"], worker=worker, limit=NO_LIMIT)
        lost: int = row["lost"]
        return lost

    async def command_status(self, command_id: CommandId) -> tuple[str, int] | None:
        rows = await self._main.read(_SQL["command_status"], command_id=command_id)
        return (rows[0]["status"], rows[0]["attempt"]) if rows else None

    async def queue(
        self,
        tenant: Tenant,
        *,
        status: str | None = None,
        pool: str | None = None,
        execution_id: ExecutionId | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[QueueEntry]:
        rows = await self._main.read(
            _SQL["queue"],
            tenant=tenant,
            status=status,
            pool=pool,
            execution_id=_to_number(execution_id),
            after=after,
            limit=limit,
        )
        return [
            QueueEntry(**{**row, "execution_id": _to_execution_id(row["execution_id"])})
            for row in rows
        ]

    async def depths(self, tenant: Tenant | None = None) -> list[QueueDepth]:
        rows = await self._background.read(_SQL["depths"], tenant=tenant)
        return [QueueDepth(*row) for row in rows]

    async def note_worker(self, worker: WorkerPresence, lease: Micros) -> None:
        await self._background.write(
            _SQL["note_worker"],
            worker=worker.worker,
            tenant=worker.tenant,
            server=worker.server,
            pools=list(worker.pools),
            free=worker.free,
            held=worker.held,
            lease=lease,
        )

    async def workers(self, tenant: Tenant) -> list[WorkerPresence]:
        rows = await self._main.read(_SQL["workers"], tenant=tenant)
        return [WorkerPresence(**{**row, "pools": tuple(row["pools"])}) for row in rows]


MAX_START_DELAY_MICROS = (
    7 * 86_400 * 1_000_000
)  # microseconds between making an execution's id and its start
_PLAIN_COLUMNS: dict[str, Callable[[list[Any]], str]] = {
    "tenant": format_numbers,
    "path": format_texts,
    "status": format_texts,
    "last_seq": format_numbers,
    "started_at": format_numbers,
    "updated_at": format_numbers,
    "ended_at": format_numbers,
    "error": format_texts,
    "steps": format_numbers,
    "recovered": format_numbers,
    "state_hash": format_texts,
}
_REF_COLUMNS = (
    "r_id",
    "r_tier",
    "r_uri",
    "r_sha256",
    "r_bytes",
    "r_rows",
    "r_format",
    "r_parent",
    "r_payload",
)


def _make_like_pattern(path: str | None) -> str:
    """The LIKE pattern of a path with wildcards."""
    escaped = re.sub(r"([\\%_])", r"\\\1", path or "")
    return escaped.replace("*", "%")


def _to_execution_id(number: int) -> ExecutionId:
    return ExecutionId(str(number))


def _read_first_value(rows: Sequence[Record], default: int) -> int:
    if not rows:
        return default
    value: int = rows[0][0]
    return value


def _to_number(execution_id: ExecutionId | None) -> int | None:
    return None if execution_id is None else int(execution_id)


def _make_ref_columns(refs: tuple[StoredRef, ...]) -> dict[str, list[Any]]:
    """The references of a report, their inputs and their lifetimes, as columns."""
    columns: dict[str, list[Any]] = {name: [] for name in _REF_COLUMNS}
    columns |= {"ri_ref": [], "ri_input": [], "l_ref": [], "l_scope": [], "l_ttl": []}
    for ref in refs:
        for name, value in zip(_REF_COLUMNS, make_ref_row(ref), strict=True):
            columns[name].append(value)
        for input_id in ref.inputs:
            columns["ri_ref"].append(int(ref.reference.ref_id))
            columns["ri_input"].append(int(input_id))
        if ref.lifetime is not None:
            for name, value in make_lifetime_row(ref.reference, ref.lifetime).items():
                columns[f"l_{name}"].append(value)
    return columns


def _decode_traced(row: Record) -> TracedReference:
    reference = Reference(
        ref_id=RefId(str(row["ref_id"])),
        type=row["tier"],
        uri=row["uri"],
        sha256=row["sha256"],
        bytes=row["bytes"],
        rows=row["rows"],
        format=row["format"],
    )
    parent = row["parent_ref_id"]
    return TracedReference(
        depth=row["depth"],
        reference=reference,
        parent=None if parent is None else RefId(str(parent)),
        inputs=tuple(RefId(str(ref_id)) for ref_id in row["inputs"]),
        at=row["at"],
        expired_at=row["expired_at"],
    )


def _decode_life(row: Record) -> ReferenceLife:
    lifetime = None
    if row["scope"] is not None:
        lifetime = Lifetime(row["scope"], row["ttl"])
    return ReferenceLife(lifetime, row["expired_at"])


def _make_place_columns(places: list[StepKey]) -> dict[str, list[Any]]:
    return {
        "executions": [int(execution_id) for execution_id, _ in places],
        "steps": [step for _, step in places],
    }


def _decode_pinned(row: Record) -> PinnedExecution:
    return PinnedExecution(
        _to_execution_id(row["execution_id"]),
        Tenant(row["tenant"]),
        row["playbook"],
        msgspec.json.decode(row["data"]),
    )


def _decode_projection(row: Record) -> Projection:
    columns = dict(row)
    for name in ("execution_id", "parent", "retry_of"):
        if columns[name] is not None:
            columns[name] = _to_execution_id(columns[name])
    return Projection(**columns)
