"""The memory twin of the log in Postgres, with the same constraints. Every method is one critical
section.
"""

import heapq
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any, assert_never

import msgspec

from noetl.log.limits import check_size
from noetl.log.playbook_state_memory import PlaybookStateMemory, write_state
from noetl.log.port import (
    MAX_BLOB_BYTES,
    NO_PROGRESS,
    AppendBatch,
    Appended,
    ExecutionFilter,
    ExecutionPart,
    InboxRow,
    JudgedCounts,
    Known,
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
    ShardLost,
    ShardRows,
    StaleAttempt,
    StateRow,
    StepKey,
    StorageUsage,
    TracedReference,
    WorkerPresence,
    has_wildcard,
)
from noetl.log.result_lifetimes import judge
from noetl.log.tables import FINISHED, CommandRow, EventRow, MemoryDatabase, PostedRow, WorkerRow
from noetl.model import codec
from noetl.model.commands import Command
from noetl.model.decisions import (
    AddPart,
    AskAdmission,
    ClearTimer,
    Effect,
    Finish,
    Issue,
    LeaveAdmission,
    Park,
    Requeue,
    Send,
    SetState,
    SetTimer,
    StartChild,
    Stop,
)
from noetl.model.errors import Conflict, InvalidInput, NoetlError, NotFound
from noetl.model.events import ChildStarted, Ending, Terminal
from noetl.model.exchange import LeaseKey
from noetl.model.ids import CommandId, ExecutionId, Micros, RefId, Tenant, TimerId
from noetl.model.messages import Admitted, Message, Notice, Report, Start, Stopped, StoredRef
from noetl.model.playbook_state import StateValue
from noetl.model.reference import Reference, parse_uri

__all__ = ["LogMemory", "MemoryDatabase"]


_pinned = msgspec.json.Decoder(PinnedExecution)
_stored_ref = msgspec.json.Decoder(StoredRef)
_projection = msgspec.json.Decoder(Projection)
_part = msgspec.json.Decoder(AddPart)
_present = msgspec.json.Decoder(WorkerPresence)


class LogMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database
        self._state = PlaybookStateMemory(database)

    # -- the owner --

    async def append(self, batch: AppendBatch) -> list[Outcome]:
        if len({part.execution_id for part in batch.parts}) != len(batch.parts):
            raise NoetlError(
                "an execution has two parts in one batch", hint="one part per execution"
            )
        refusals = [self._find_refusal(part, batch.epochs) for part in batch.parts]
        refusals = self._state.refuse_parts(batch.parts, refusals)
        # all parts are checked before the first is applied
        writes = [
            _PartWrite(self._db, part, batch.lease)
            for part, refusal in zip(batch.parts, refusals, strict=True)
            if refusal is None
        ]
        applied = {write.part.execution_id: write.apply() for write in writes}
        return [
            refusal or applied[part.execution_id]
            for part, refusal in zip(batch.parts, refusals, strict=True)
        ]

    def _find_refusal(self, part: ExecutionPart, epochs: dict[int, int]) -> Outcome | None:
        """Why the part is refused; None if it is not.

        In order: the fence, the last sequence number, what the part consumes, the keys of its events.
        """
        db, rows = self._db, self._db.get_execution_rows(part.execution_id)
        if part.shard != db.shard_of(part.execution_id):
            raise NoetlError(f"execution {part.execution_id} is not of shard {part.shard}")
        if db.shards[part.shard].epoch != epochs.get(part.shard):
            return ShardLost(part.execution_id, part.shard)
        if part.after != rows.last_seq:
            return Known(part.execution_id)
        for held in part.taken:
            row = db.commands.get(held.command_id)
            if row is None or row.attempt != held.attempt:
                return StaleAttempt(part.execution_id, held)
            if row.status not in ("leased", "reported"):
                return StaleAttempt(part.execution_id, held)
            if row.status == "reported" or held.command_id in db.reports:
                return Known(part.execution_id)
        if any(inbox_id not in db.inbox[part.shard] for inbox_id in part.inbox):
            return Known(part.execution_id)
        timers = db.timers[part.shard]
        if any((part.execution_id, timer) not in timers for timer in part.timers):
            return Known(part.execution_id)
        keys = [event.key for event in part.events]
        for number, key in enumerate(keys):
            if key in rows.keys or key in keys[:number]:
                return Known(part.execution_id, key)
        return None

    async def inbox(
        self, shards: list[int], limit: int, skip: frozenset[ExecutionId] = frozenset()
    ) -> list[InboxRow]:
        inboxes = [self._db.inbox[shard].values() for shard in shards]
        rows = heapq.merge(*inboxes, key=lambda row: row.inbox_id)
        wanted = (row for row in rows if row.execution_id not in skip or row.kind == "release")
        return [_decode_inbox_row(row) for row in islice(wanted, limit)]

    async def due_timers(self, shards: list[int], limit: int) -> list[tuple[ExecutionId, TimerId]]:
        now = self._db.clock.now()
        due: list[tuple[Micros, tuple[ExecutionId, TimerId]]] = []
        for shard in shards:
            timers = self._db.timers[shard]
            due += [(at, key) for key, at in timers.items() if at <= now]
        return [key for _, key in heapq.nsmallest(limit, due)]

    async def project(self, batch: list[ShardRows]) -> list[bool]:
        """Write all projections, or raise and write none."""
        db = self._db
        owned = [db.shards[shard_rows.shard].epoch == shard_rows.epoch for shard_rows in batch]
        for shard_rows, ours in zip(batch, owned, strict=True):
            for row in shard_rows.rows:
                is_ahead = ours and row.last_seq > db.get_execution_rows(row.execution_id).last_seq
                if is_ahead or row.shard != shard_rows.shard:
                    raise NoetlError(
                        f"projection of {row.execution_id} is ahead of the log or of another shard"
                    )
        for shard_rows, ours in zip(batch, owned, strict=True):
            if ours:
                self._write_projections(shard_rows)
        return owned

    def _write_projections(self, shard_rows: ShardRows) -> None:
        db, shard = self._db, shard_rows.shard
        for row in shard_rows.rows:
            stored = self._read_projection(row.execution_id)
            if stored is None or stored.last_seq < row.last_seq:
                db.projections[row.execution_id] = codec.encode(row)
        checkpoint = min(shard_rows.checkpoint, db.shards[shard].last_seq)
        db.checkpoints[shard] = max(db.checkpoints[shard], checkpoint)

    # -- anyone --

    async def start(self, start: Start, workload: dict[str, Any]) -> ExecutionId:
        db = self._db
        if start.start_key is not None:
            known = db.start_keys.setdefault((start.tenant, start.start_key), start.execution_id)
            if known != start.execution_id:
                return known
        _pin_and_start(db, start, workload)
        return start.execution_id

    async def post(self, execution_id: ExecutionId, message: Message) -> bool:
        if message.key in self._db.get_execution_rows(execution_id).keys:
            return False
        return self._db.post(execution_id, message)

    async def accept(self, report: Report) -> bool:
        """The references are stored at once; the inbox row is written without them."""
        db = self._db
        row = db.commands.get(report.command_id)
        if row is None or row.attempt != report.attempt or row.execution_id != report.execution_id:
            return False
        if report.event.key in db.get_execution_rows(report.execution_id).keys:
            return True
        if (report.execution_id, report.key) in db.inbox_keys:
            return True
        if row.status != "leased":
            return False
        db.store_refs(report.refs)
        db.post(report.execution_id, msgspec.structs.replace(report, refs=()))
        if isinstance(report.event, Ending):
            db.end_lease(row, "reported")
        return True

    # -- readers --

    async def events(
        self, execution_id: ExecutionId, after: int = 0, limit: int = 10_000
    ) -> list[RecordedEvent]:
        rows = self._db.get_execution_rows(execution_id).events
        first = bisect_right(rows, after, key=lambda row: row.seq)
        return [self._decode_event_row(row) for row in rows[first : first + limit]]

    async def named_events(self, names: list[tuple[ExecutionId, str]]) -> list[RecordedEvent]:
        wanted = set(names)
        recorded: list[RecordedEvent] = []
        for execution_id in {execution_id for execution_id, _ in names}:
            recorded += map(
                self._decode_event_row, self._db.get_execution_rows(execution_id).events
            )
        return [event for event in recorded if (event.execution_id, event.event.key) in wanted]

    async def follow(self, shard: int, after: int, limit: int) -> list[RecordedEvent]:
        # sequence numbers have no gaps and begin at 1, so a number is a position
        rows = self._db.by_shard[shard][after : after + limit]
        return [self._decode_event_row(row) for row in rows]

    async def changes(self, after: dict[int, int], limit: int) -> list[RecordedChange]:
        changes: dict[ExecutionId, RecordedChange] = {}
        for shard, seq in sorted(after.items()):
            for row in self._db.by_shard[shard][seq : seq + limit]:
                earlier = changes.pop(row.execution_id, None)
                count = 1
                if earlier is not None:
                    count += earlier.events
                changes[row.execution_id] = RecordedChange(shard, row.seq, row.execution_id, count)
        return list(changes.values())

    async def parts(self, manifest: str) -> list[AddPart]:
        parts = self._db.manifests.get(manifest, {})
        return [_part.decode(parts[first]) for first in sorted(parts)]

    async def last_seq(self, execution_id: ExecutionId) -> int:
        return self._db.get_execution_rows(execution_id).last_seq

    async def read_pinned(self, execution_id: ExecutionId) -> PinnedExecution | None:
        data = self._db.pinned.get(execution_id)
        return None if data is None else _pinned.decode(data)

    async def pins(self, execution_ids: list[ExecutionId]) -> dict[ExecutionId, PinnedExecution]:
        known = [execution_id for execution_id in execution_ids if execution_id in self._db.pinned]
        return {
            execution_id: _pinned.decode(self._db.pinned[execution_id]) for execution_id in known
        }

    async def projection(self, execution_id: ExecutionId) -> Projection | None:
        return self._read_projection(execution_id)

    async def projections(self, tenant: Tenant, limit: int) -> list[Projection]:
        """Newest first: ids are ordered by time."""
        newest = sorted(self._db.projections, key=int, reverse=True)
        rows = map(self._read_projection, newest)
        wanted = (row for row in rows if row is not None and row.tenant == tenant)
        return list(islice(wanted, limit))

    async def executions(
        self, tenant: Tenant, wanted: ExecutionFilter, before: ExecutionId | None, limit: int
    ) -> list[Projection]:
        execution_ids = sorted(self._db.projections, key=int, reverse=True)
        if before is not None:
            execution_ids = [each for each in execution_ids if int(each) < int(before)]
        if wanted.roots:
            children = set(self._db.children.values())
            execution_ids = [each for each in execution_ids if each not in children]
        found = map(self._read_projection, execution_ids)
        of_tenant = (row for row in found if row is not None and row.tenant == tenant)
        rows = (row for row in of_tenant if _matches_filter(row, wanted))
        return [msgspec.structs.replace(row, state=None) for row in islice(rows, limit)]

    async def child_counts(self, parent: ExecutionId) -> dict[str, int]:
        rows = map(self._read_projection, self._db.projections)
        return dict(Counter(row.status for row in rows if row is not None and row.parent == parent))

    async def tenant_of(self, execution_id: ExecutionId) -> Tenant | None:
        data = self._db.pinned.get(execution_id)
        return None if data is None else _pinned.decode(data).tenant

    async def received(self, execution_id: ExecutionId, key: str) -> MessageState:
        rows = self._db.get_execution_rows(execution_id)
        if key not in rows.keys:
            return MessageState(waiting=(execution_id, key) in self._db.inbox_keys)
        numbers = (row.seq for row in rows.events if codec.decode_event(row.data).key == key)
        return MessageState(seq=next(numbers))

    async def checkpoint(self, shard: int) -> int:
        return self._db.checkpoints[shard]

    async def live(self, shard: int) -> list[ExecutionId]:
        return list(self._db.live[shard])

    def _read_projection(self, execution_id: ExecutionId) -> Projection | None:
        data = self._db.projections.get(execution_id)
        return None if data is None else _projection.decode(data)

    def _decode_event_row(self, row: EventRow) -> RecordedEvent:
        shard = self._db.shard_of(row.execution_id)
        event = codec.decode_event(row.data)
        return RecordedEvent(row.execution_id, shard, row.seq, row.epoch, event)

    # -- state between executions --

    async def read_state(
        self, tenant: Tenant, path: str, names: list[str] | None = None
    ) -> list[StateRow]:
        return self._state.read_state(tenant, path, names)

    async def list_state(
        self, tenant: Tenant, after: tuple[str, str], limit: int
    ) -> list[StateRow]:
        return self._state.list_state(tenant, after, limit)

    async def state_history(
        self, tenant: Tenant, path: str, name: str, before: int, limit: int
    ) -> list[StateRow]:
        return self._state.state_history(tenant, path, name, before, limit)

    async def put_state(
        self,
        tenant: Tenant,
        path: str,
        name: str,
        value: StateValue,
        expected: int | None,
        by: str | None,
    ) -> int:
        return self._state.put_state(tenant, path, name, value, expected, by)

    # -- small payloads --

    async def put_blob(self, reference: Reference, payload: bytes) -> None:
        if len(payload) > MAX_BLOB_BYTES:
            raise InvalidInput(
                f"the payload is {len(payload)} bytes",
                hint=f"at most {MAX_BLOB_BYTES}: larger ones go to files",
            )
        execution_id = parse_uri(reference.uri).execution_id
        if execution_id not in self._db.pinned:
            raise NotFound(f"no execution {execution_id}")
        name = (reference.ref_id, reference.uri)
        if name not in self._db.blobs:
            self._db.puts[name] = execution_id
        if self._db.blobs.setdefault(name, payload) != payload:
            raise Conflict(
                f"{reference.uri} holds another payload",
                hint="a result is written once; use another key",
            )

    async def blob(self, ref_id: RefId, uri: str) -> bytes | None:
        return self._db.blobs.get((ref_id, uri))

    async def orphans(self, execution_id: ExecutionId, uris: list[str]) -> list[str]:
        rows = self._db.executions.get(execution_id)
        if rows is None or not rows.ended:
            return []
        named: set[str] = set()
        for ref_id, data in self._db.refs.items():
            if ref_id not in self._db.expired:
                named.add(_stored_ref.decode(data).reference.uri)
        return [uri for uri in uris if uri not in named]

    # -- how long results stay --

    async def judge(self, grace: Micros, retention: Micros | None, limit: int) -> JudgedCounts:
        return judge(self._db, grace, retention, limit)

    async def lives(self, refs: list[RefId]) -> dict[RefId, ReferenceLife]:
        lives: dict[RefId, ReferenceLife] = {}
        for ref_id in refs:
            data = self._db.refs.get(ref_id)
            if data is not None:
                lifetime = _stored_ref.decode(data).lifetime
                lives[ref_id] = ReferenceLife(lifetime, self._db.expired.get(ref_id))
        return lives

    async def pin_results(self, places: list[StepKey]) -> None:
        self._db.result_pins |= dict.fromkeys(places)

    async def unpin_results(self, places: list[StepKey]) -> None:
        for place in places:
            if place in self._db.result_pins:
                del self._db.result_pins[place]
                self._db.judge_at.pop(place[0], None)

    async def pinned_results(self, executions: list[ExecutionId]) -> list[StepKey]:
        places = [place for place in self._db.result_pins if place[0] in executions]
        return sorted(places, key=lambda place: (int(place[0]), place[1]))

    async def usage(self, executions: list[ExecutionId]) -> list[StorageUsage]:
        counts: dict[tuple[ExecutionId, str], StorageUsage] = {}
        for ref_id, data in self._db.refs.items():
            reference = _stored_ref.decode(data).reference
            execution_id = parse_uri(reference.uri).execution_id
            if execution_id not in executions:
                continue
            place = (execution_id, reference.type)
            known = counts.get(place, StorageUsage(*place, 0, 0, 0))
            if ref_id in self._db.expired:
                counts[place] = msgspec.structs.replace(known, expired=known.expired + 1)
            else:
                total = known.bytes + (reference.bytes or 0)
                counts[place] = msgspec.structs.replace(known, count=known.count + 1, bytes=total)
        places = sorted(counts, key=lambda place: (int(place[0]), place[1]))
        return [counts[place] for place in places]

    # -- lineage --

    async def lineage(
        self,
        tenant: Tenant,
        roots: list[RefId],
        depth: int,
        after: tuple[int, RefId] | None,
        limit: int,
    ) -> list[TracedReference]:
        visited: set[RefId] = set()
        front = dict.fromkeys(roots)
        found: list[TracedReference] = []
        for distance in range(depth + 1):
            nodes = [self._trace_reference(tenant, ref_id, distance) for ref_id in front]
            traced = [node for node in nodes if node is not None]
            visited |= front.keys()
            found += sorted(traced, key=_lineage_order)
            sources: list[RefId | None] = []
            for node in traced:
                sources += [node.parent, *node.inputs]
            front = dict.fromkeys(
                source for source in sources if source is not None and source not in visited
            )
        last_seen = (-1, 0) if after is None else (after[0], int(after[1]))
        return [node for node in found if _lineage_order(node) > last_seen][:limit]

    def _trace_reference(self, tenant: Tenant, ref_id: RefId, depth: int) -> TracedReference | None:
        data = self._db.refs.get(ref_id)
        if data is None:
            return None
        ref = _stored_ref.decode(data)
        pinned = self._db.pinned.get(parse_uri(ref.reference.uri).execution_id)
        if pinned is None or _pinned.decode(pinned).tenant != tenant:
            return None
        inputs = tuple(sorted(dict.fromkeys(ref.inputs), key=int))
        reference = msgspec.structs.replace(ref.reference, rows_at=None)
        return TracedReference(
            depth=depth,
            reference=reference,
            parent=ref.parent,
            inputs=inputs,
            at=self._db.ref_times[ref_id],
            expired_at=self._db.expired.get(ref_id),
        )

    # -- step logs --

    async def put_logs(self, parts: tuple[StoredRef, ...]) -> None:
        for part in parts:
            where = parse_uri(part.reference.uri)
            name = (part.reference.ref_id, part.reference.uri)
            if where.execution_id in self._db.pinned and name not in self._db.blobs:
                self._db.blobs[name] = part.payload or b""
                self._db.logs.setdefault(where.execution_id, []).append((where.step, name))

    async def logs(
        self, execution_id: ExecutionId, step: str | None, after: int, limit: int
    ) -> list[LogPart]:
        entries = self._db.logs.get(execution_id, [])
        found: list[LogPart] = []
        for number, (part_step, blob) in enumerate(entries[after:], after + 1):
            if len(found) == limit:
                break
            if step in (None, part_step):
                _, uri = blob
                found.append(LogPart(number, uri, self._db.blobs[blob]))
        return found

    # -- the queue --

    async def claim(
        self, worker: str, pools: tuple[str, ...], limit: int, lease: Micros
    ) -> list[Command]:
        rows: list[CommandRow] = []
        leased = [row for row in self._db.leased.values() if row.worker == worker]
        holds_suspect = any(row.is_suspect for row in leased)
        if limit > 0 and not holds_suspect:
            suspect = self._db.pop_claimable(pools, suspect=True)
            if suspect is not None:
                rows.append(suspect)
        while len(rows) < limit:
            row = self._db.pop_claimable(pools, suspect=False)
            if row is None:
                break
            rows.append(row)
        rows.sort(key=lambda row: (-row.priority, row.number))
        return [self._db.lease_command(row, worker, lease) for row in rows]

    async def renew(
        self,
        worker: str,
        held: tuple[LeaseKey, ...],
        lease: Micros,
        progress: Mapping[LeaseKey, str] = NO_PROGRESS,
    ) -> Renewal:
        """A command that is to be stopped keeps its lease while its worker stops it."""
        stop: list[LeaseKey] = []
        lost: list[LeaseKey] = []
        for key in held:
            row = self._db.leased.get(key.command_id)
            if row is None or row.worker != worker or row.attempt != key.attempt:
                lost.append(key)
                continue
            row.lease_until = self._db.clock.now() + lease
            row.progress = progress.get(key)
            if row.cancel:
                stop.append(key)
        return Renewal(tuple(stop), tuple(lost))

    async def leased(self, worker: str) -> list[Command]:
        return [
            codec.decode_command(row.data)
            for row in self._db.leased.values()
            if row.worker == worker
        ]

    async def expire_leases(self, limit: int) -> int:
        now = self._db.clock.now()
        leased = self._db.leased.values()
        over = [row for row in leased if row.lease_until <= now][:limit]
        for row in over:
            self._db.lose(row)
        self._db.sweep()
        return len(over)

    async def lose(self, worker: str) -> int:
        gone = [row for row in self._db.leased.values() if row.worker == worker]
        for row in gone:
            self._db.lose(row)
        return len(gone)

    async def command_status(self, command_id: CommandId) -> tuple[str, int] | None:
        row = self._db.commands.get(command_id)
        return None if row is None else (row.status, row.attempt)

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
        rows = (
            row
            for row in self._db.commands.values()
            if row.number > after
            and status in (None, row.status)
            and pool in (None, row.pool)
            and execution_id in (None, row.execution_id)
        )
        of_tenant = (row for row in rows if codec.decode_command(row.data).tenant == tenant)
        first = heapq.nsmallest(limit, of_tenant, key=lambda row: row.number)
        return [_make_queue_entry(row) for row in first]

    async def depths(self, tenant: Tenant | None = None) -> list[QueueDepth]:
        rows = [row for row in self._db.commands.values() if row.status not in FINISHED]
        if tenant is not None:
            rows = [row for row in rows if codec.decode_command(row.data).tenant == tenant]
        counts = Counter((row.pool, row.status) for row in rows)
        return [QueueDepth(pool, status, count) for (pool, status), count in sorted(counts.items())]

    async def note_worker(self, worker: WorkerPresence, lease: Micros) -> None:
        now = self._db.clock.now()
        self._db.workers[worker.worker] = WorkerRow(codec.encode(worker), now, now + lease)

    async def find_lost_history(self, limit: int) -> list[str]:
        return []  # nothing is ever moved to files

    async def workers(self, tenant: Tenant) -> list[WorkerPresence]:
        now = self._db.clock.now()
        found: list[WorkerPresence] = []
        for row in self._db.workers.values():
            if row.until <= now:
                continue
            worker = _present.decode(row.data)
            if worker.tenant == tenant:
                found.append(msgspec.structs.replace(worker, age=now - row.seen_at))
        return sorted(found, key=lambda worker: worker.worker)


class _PartWrite:
    """A part that passed every check. The constructor raises for bugs of the caller; `apply` cannot
    fail.
    """

    def __init__(self, database: MemoryDatabase, part: ExecutionPart, lease: Micros) -> None:
        self.part = part
        self._db = database
        self._lease = lease
        self._events = [(event.key, check_size(event)) for event in part.events]
        self._inboxes: dict[int, None] = {}
        self._children = iter(part.child_starts)
        starts = sum(isinstance(effect, StartChild) for effect in part.effects)
        if not starts == len(part.children) == len(part.child_starts):
            raise NoetlError(f"{starts} children to start, {len(part.child_starts)} starts given")
        for effect in part.effects:
            self._check_effect(effect)

    def _check_effect(self, effect: Effect) -> None:
        if isinstance(effect, Requeue):
            row = self._db.commands.get(effect.command_id)
            if row is None or row.status in FINISHED:
                raise NoetlError(f"command {effect.command_id} is over and cannot be queued again")
        if isinstance(effect, Issue) and effect.command.command_id in self._db.commands:
            raise NoetlError(f"command {effect.command.command_id} was issued already")

    def apply(self) -> Appended:
        part, db = self.part, self._db
        for inbox_id in part.inbox:
            db.consume_message(part.shard, inbox_id)
        for timer in part.timers:
            del db.timers[part.shard][part.execution_id, timer]
        db.store_refs(part.refs)
        for effect in part.effects:
            self._apply_effect(effect)
        for handoff in part.handoffs:
            row = db.commands.get(handoff.command_id)
            if row is not None and row.status == "queued" and row.available_at <= db.clock.now():
                db.lease_command(row, handoff.worker, self._lease)
        ended = any(isinstance(event, Terminal) for event in part.events)
        last = db.append(part.execution_id, self._events, ended=ended)
        return Appended(part.execution_id, last, tuple(sorted(self._inboxes)))

    def _apply_effect(self, effect: Effect) -> None:
        db, part = self._db, self.part
        match effect:
            case Issue():
                db.issue_command(effect.command, effect.available_at)
            case Requeue():
                row = db.commands[effect.command_id]
                db.requeue_command(row, effect.attempt, effect.journal, effect.available_at)
            case Park():
                self._move_command(effect.command_id, "parked")
            case Finish():
                self._move_command(effect.command_id, effect.status)
            case Stop():
                for command_id in effect.commands:
                    self._stop_command(db.commands.get(command_id))
            case SetTimer():
                db.timers[part.shard][part.execution_id, effect.timer] = effect.due
            case ClearTimer():
                db.timers[part.shard].pop((part.execution_id, effect.timer), None)
            case StartChild():
                self._start_child(effect, next(self._children))
            case Send():
                self._post_message(effect.execution_id, effect.message)
            case AddPart():
                db.manifests.setdefault(effect.manifest, {})[effect.first] = codec.encode(effect)
            case AskAdmission():
                self._ask_admission(effect)
            case LeaveAdmission():
                self._leave_admission(effect)
            case SetState():
                write_state(db, part, effect)
            case _:
                assert_never(effect)

    def _post_message(self, execution_id: ExecutionId, message: Message) -> None:
        if self._db.post(execution_id, message):
            self._inboxes[self._db.shard_of(execution_id)] = None

    def _move_command(self, command_id: CommandId, status: str) -> None:
        row = self._db.commands.get(command_id)
        if row is not None and row.status not in FINISHED:
            self._db.end_lease(row, status)

    def _stop_command(self, row: CommandRow | None) -> None:
        """Stop a command. One that was reported meanwhile is not stopped: its report is on the way."""
        if row is None:
            return
        if row.status == "leased":
            row.cancel = True
        elif row.status in ("queued", "parked", "lost"):
            self._db.end_lease(row, "cancelled")
            self._post_message(
                row.execution_id, Stopped(command_id=row.command_id, attempt=row.attempt)
            )

    def _start_child(self, effect: StartChild, start: Start) -> None:
        db, parent = self._db, effect.parent
        call = (parent.execution_id, parent.call)
        child = db.children.setdefault(call, start.execution_id)
        if child != start.execution_id:
            return
        _pin_and_start(db, start, effect.workload)
        self._inboxes[db.shard_of(start.execution_id)] = None
        event = ChildStarted(call=parent.call, child=start.execution_id)
        self._post_message(parent.execution_id, Notice(event=event))

    def _ask_admission(self, effect: AskAdmission) -> None:
        admission = self._db.get_admission(self.part.tenant, effect.path)
        if self.part.execution_id not in admission.active:
            admission.waiting.setdefault(self.part.execution_id, effect.limit)
        self._admit_waiting(effect.path)

    def _leave_admission(self, effect: LeaveAdmission) -> None:
        admission = self._db.get_admission(self.part.tenant, effect.path)
        admission.active.pop(self.part.execution_id, None)
        admission.waiting.pop(self.part.execution_id, None)
        self._admit_waiting(effect.path)

    def _admit_waiting(self, path: str) -> None:
        """Admit executions in the order they asked. The first in line is never overtaken by one
        with a higher limit.
        """
        admission = self._db.get_admission(self.part.tenant, path)
        for execution_id, limit in list(admission.waiting.items()):
            if len(admission.active) >= limit:
                return
            del admission.waiting[execution_id]
            admission.active[execution_id] = None
            self._post_message(execution_id, Admitted())


def _pin_and_start(db: MemoryDatabase, start: Start, workload: dict[str, Any]) -> None:
    if start.execution_id in db.pinned:
        return
    db.pin_execution(
        start.execution_id,
        PinnedExecution(start.execution_id, start.tenant, start.playbook, workload),
    )
    db.post(start.execution_id, start)


def _lineage_order(traced: TracedReference) -> tuple[int, int]:
    return traced.depth, int(traced.reference.ref_id)


def _decode_inbox_row(row: PostedRow) -> InboxRow:
    return InboxRow(row.inbox_id, row.shard, row.execution_id, codec.decode_message(row.data))


def _matches_path(path: str, wanted: str) -> bool:
    if not has_wildcard(wanted):
        return path == wanted
    pattern = ".*".join(map(re.escape, wanted.split("*")))
    return re.fullmatch(pattern, path) is not None


def _matches_filter(row: Projection, wanted: ExecutionFilter) -> bool:
    return (
        wanted.status in (None, row.status)
        and (wanted.path is None or _matches_path(row.path, wanted.path))
        and wanted.parent in (None, row.parent)
        and not (wanted.roots and row.parent is not None)
        and (wanted.since is None or row.started_at >= wanted.since)
    )


def _make_queue_entry(row: CommandRow) -> QueueEntry:
    command = codec.decode_command(row.data)
    return QueueEntry(
        number=row.number,
        command_id=row.command_id,
        execution_id=row.execution_id,
        step=command.step,
        kind=command.kind,
        pool=row.pool,
        status=row.status,
        attempt=row.attempt,
        priority=row.priority,
        available_at=row.available_at or None,
        worker=row.worker,
        lease_until=row.lease_until or None,
        stopping=row.cancel,
        progress=row.progress if row.status == "leased" else None,
    )
