"""The memory twin of the inbox. Every method is one critical section."""

import heapq
from itertools import islice
from typing import Any

import msgspec

from noetl.log.inbox.port import DueTimer, InboxRow, MessageState
from noetl.log.tables import MemoryDatabase, PostedRow
from noetl.model import codec
from noetl.model.events import Ending
from noetl.model.ids import ExecutionId, Micros, Tenant
from noetl.model.messages import Message, Report, Start


class InboxMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    async def read_messages(
        self, shards: list[int], limit: int, skip: frozenset[ExecutionId] = frozenset()
    ) -> list[InboxRow]:
        inboxes = [self._db.inbox[shard].values() for shard in shards]
        rows = heapq.merge(*inboxes, key=lambda row: row.inbox_id)
        wanted = (row for row in rows if row.execution_id not in skip or row.kind == "release")
        return [_decode_inbox_row(row) for row in islice(wanted, limit)]

    async def read_due_timers(self, shards: list[int], limit: int) -> list[DueTimer]:
        now = self._db.clock.now()
        due: list[tuple[Micros, DueTimer]] = []
        for shard in shards:
            timers = self._db.timers[shard]
            due += [(at, DueTimer(*key)) for key, at in timers.items() if at <= now]
        return [timer for _, timer in heapq.nsmallest(limit, due)]

    async def find_next_timer(self, shards: list[int]) -> Micros | None:
        due = [at for shard in shards for at in self._db.timers[shard].values()]
        return min(due, default=None)

    async def start_execution(self, start: Start, workload: dict[str, Any]) -> ExecutionId:
        db = self._db
        if start.start_key is not None:
            known = db.start_keys.setdefault((start.tenant, start.start_key), start.execution_id)
            if known != start.execution_id:
                return known
        db.pin_and_start(start, workload)
        return start.execution_id

    async def find_started(self, tenant: Tenant, start_key: str) -> ExecutionId | None:
        return self._db.start_keys.get((tenant, start_key))

    async def post_message(self, execution_id: ExecutionId, message: Message) -> bool:
        if message.key in self._db.get_execution_rows(execution_id).keys:
            return False
        return self._db.post(execution_id, message)

    async def accept_report(self, tenant: Tenant, report: Report) -> bool:
        """The references are stored at once; the inbox row is written without them."""
        db = self._db
        if db.find_tenant(report.execution_id) not in (None, tenant):
            return False
        row = db.commands.get(report.command_id)
        if row is None:
            return self._is_recorded(report)
        if row.attempt != report.attempt or row.execution_id != report.execution_id:
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

    def _is_recorded(self, report: Report) -> bool:
        """Whether the log has the event of this attempt. The row of a command that is done is gone."""
        rows = self._db.get_execution_rows(report.execution_id).events
        events = (codec.decode_event(row.data) for row in rows)
        return any(
            event.key == report.event.key and getattr(event, "attempt", None) == report.attempt
            for event in events
        )

    async def find_message(self, execution_id: ExecutionId, key: str) -> MessageState:
        rows = self._db.get_execution_rows(execution_id)
        if key not in rows.keys:
            return MessageState(waiting=(execution_id, key) in self._db.inbox_keys)
        numbers = (row.seq for row in rows.events if codec.decode_event(row.data).key == key)
        return MessageState(seq=next(numbers))


def _decode_inbox_row(row: PostedRow) -> InboxRow:
    return InboxRow(row.inbox_id, row.shard, row.execution_id, codec.decode_message(row.data))
