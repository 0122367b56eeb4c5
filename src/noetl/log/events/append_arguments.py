"""A batch as the arrays of `noetl.append`: one row per part, command and reference; rare things are
JSON.

Effects on one command are merged first, so that each row is written once. Effects after an `Issue`
or a `Requeue` of the same part are merged here. A `Stop` depends on the stored row, so the database
carries it out before the effects that follow it.
"""

from dataclasses import dataclass
from itertools import chain, islice
from typing import (
    Any,
    Self,
    assert_never,
)

import msgspec

from noetl.log.columns import RefRow, make_lifetime_row, make_ref_row, split_message_columns
from noetl.log.events.append_rows import (
    BatchRows,
    ConsumedRow,
    IssuedRow,
    KeyRow,
    MovedRow,
    PartRow,
    PartVerdict,
    TakenRow,
    encode_columns,
)
from noetl.log.events.event_halves import split_event
from noetl.log.events.limits import check_size
from noetl.log.events.packing import pack_events
from noetl.log.events.port import (
    AppendBatch,
    Appended,
    ExecutionPart,
    Known,
    Outcome,
    ShardLost,
    StaleAttempt,
    StateChanged,
)
from noetl.log.stored_json import compress_json
from noetl.model import codec
from noetl.model.commands import Command, Journal
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
from noetl.model.errors import NoetlError
from noetl.model.event_groups import find_stored_groups
from noetl.model.events import ChildStarted, KeyedEvent, Terminal
from noetl.model.ids import CommandId, ExecutionId, Micros, TimerId, shard_of
from noetl.model.messages import Message, Notice, Start, Stopped
from noetl.model.playbook_state import MAX_STATE_VERSIONS
from noetl.time_slice import TimeSlice

FINISHED = ("done", "dead", "cancelled")
PARKED_THEN_STOPPED = "stopped"  # parked and then stopped, in one part


@dataclass(slots=True)
class _CommandWrite:
    """A command that this part issues or requeues, in its state at the end of the part."""

    command_id: CommandId
    attempt: int
    available_at: Micros | None
    command: Command | None = None  # set if the part issues it
    journal: Journal | None = None  # set if the part requeues it
    status: str = "queued"
    worker: str | None = None


class AppendArguments:
    def __init__(self, batch: AppendBatch, shards: int) -> None:
        self._batch = batch
        self._shards = shards
        self._rows = BatchRows()
        if len({part.execution_id for part in batch.parts}) != len(batch.parts):
            raise NoetlError(
                "an execution has two parts in one batch", hint="one part per execution"
            )

    @classmethod
    async def from_batch(
        cls, batch: AppendBatch, shards: int, time_slice_s: float | None = None
    ) -> Self:
        """Encode a batch. A large one takes milliseconds, so others get a turn of the event loop."""
        writes = cls(batch, shards)
        time_slice = TimeSlice(time_slice_s)
        for number, part in enumerate(batch.parts, 1):
            epoch = batch.epochs.get(part.shard)
            _PartWrites(writes._rows, number, part, epoch, shards).add_rows()
            if time_slice.is_used_up:
                await time_slice.pause()
        if time_slice_s is not None:
            await time_slice.pause()  # the code up to the driver's call does not yield
        return writes

    def encode_arguments(self) -> tuple[Any, ...]:
        """The arguments in the order in which the query names them."""
        rows = self._rows
        more = codec.encode(rows.more).decode() if rows.more else None
        return (
            self._batch.lease,
            *encode_columns(PartRow, rows.parts),
            more,
            *encode_columns(KeyRow, rows.keys),
            *encode_columns(TakenRow, rows.taken),
            *encode_columns(ConsumedRow, rows.consumed),
            *encode_columns(MovedRow, rows.moved),
            *encode_columns(IssuedRow, rows.issued),
            *encode_columns(RefRow, rows.refs),
            MAX_STATE_VERSIONS,
        )

    def decode_outcomes(self, answer: Any) -> list[Outcome]:
        inboxes: dict[int, set[int]] = {}
        inbox_rows = zip(answer["inbox_part"] or (), answer["inbox_shard"] or (), strict=True)
        for number, shard in inbox_rows:
            inboxes.setdefault(number, set()).add(shard)
        conflicts = msgspec.json.decode(answer["conflicts"] or b"{}")
        verdicts = zip(
            self._batch.parts, answer["verdict"], answer["place"], answer["last_seq"], strict=True
        )
        outcomes: list[Outcome] = []
        for number, (part, verdict, place, last_seq) in enumerate(verdicts, 1):
            key = str(number)
            if key in conflicts:
                outcomes.append(_decode_conflict(part, conflicts[key]))
            else:
                shards = inboxes.get(number, set())
                outcomes.append(self._decode_outcome(part, verdict, place, last_seq, shards))
        return outcomes

    def _decode_outcome(
        self, part: ExecutionPart, verdict: int, place: int, last_seq: int, inboxes: set[int]
    ) -> Outcome:
        match verdict:
            case PartVerdict.APPENDED:
                return Appended(part.execution_id, last_seq, tuple(sorted(inboxes)))
            case PartVerdict.SHARD_LOST:
                return ShardLost(part.execution_id, part.shard)
            case PartVerdict.KNOWN:
                return Known(part.execution_id)
            case PartVerdict.STALE_ATTEMPT:
                leases = chain.from_iterable(part.taken for part in self._batch.parts)
                held = next(islice(leases, place - 1, None))
                return StaleAttempt(part.execution_id, held)
            case PartVerdict.KNOWN_KEY:
                return Known(part.execution_id, self._rows.keys[place - 1].key)
            case _:
                raise AssertionError(f"verdict {verdict}")


def _decode_conflict(part: ExecutionPart, conflict: dict[str, Any]) -> Outcome:
    """The outcome of a part with a state conflict.

    The conflict is empty if another part of the batch writes the same value: decide again once
    that part is in the log.
    """
    if not conflict:
        return Known(part.execution_id)
    return StateChanged(
        part.execution_id,
        conflict["name"],
        conflict["version"],
        conflict["by"],
        conflict.get("is_full", False),
    )


class _PartWrites:
    """Collects the rows of one part."""

    def __init__(
        self,
        rows: BatchRows,
        number: int,
        part: ExecutionPart,
        epoch: int | None,
        shards: int,
    ) -> None:
        self._rows = rows
        self._number = number
        self._part = part
        self._epoch = epoch
        self._shards = shards
        self._starts = iter(part.child_starts)
        self._issued: dict[CommandId, _CommandWrite] = {}
        self._requeued: dict[CommandId, _CommandWrite] = {}
        self._moved: dict[CommandId, str] = {}
        self._timers: dict[TimerId, Micros | None] = {}
        self._pages: dict[tuple[str, int], AddPart] = {}

    def add_rows(self) -> None:
        part = self._part
        self._check_part()
        self._add_events()
        for held in part.taken:
            self._rows.taken.append(TakenRow(self._number, held.command_id, held.attempt))
        for inbox_id in part.inbox:
            self._rows.consumed.append(ConsumedRow(self._number, inbox_id))
        for timer in part.timers:
            self._add_json_row("fired", timer=timer)
        for effect in part.effects:
            self._add_effect(effect)
        self._hand_off()
        self._add_commands()
        for ref in part.refs:
            self._rows.refs.append(make_ref_row(ref, self._number))
            if ref.lifetime is not None:
                self._add_json_row("lifetimes", **make_lifetime_row(ref.reference, ref.lifetime))
        for timer, due in self._timers.items():
            if due is None:
                self._add_json_row("clear", timer=timer)
            else:
                self._add_json_row("set", timer=timer, due=due)
        for page in self._pages.values():
            body = codec.encode(page).decode()
            self._add_json_row(
                "parts",
                manifest=page.manifest,
                first=page.first,
                count=page.count,
                failed=page.failed,
                body=body,
            )

    def _check_part(self) -> None:
        part = self._part
        if part.shard != shard_of(part.execution_id, self._shards):
            raise NoetlError(f"execution {part.execution_id} is not of shard {part.shard}")
        starts = len([effect for effect in part.effects if isinstance(effect, StartChild)])
        if not starts == len(part.children) == len(part.child_starts):
            raise NoetlError(f"{starts} children to start, {len(part.child_starts)} starts given")

    def _add_json_row(self, what: str, **row: Any) -> None:
        self._rows.more.setdefault(what, []).append({"part": self._number, **row})

    def _add_events(self) -> None:
        part = self._part
        encoded = part.encoded or tuple(check_size(event) for event in part.events)
        halves: list[tuple[str, str, str | None]] = []
        ends = 0
        groups = 0
        for nth, (event, data) in enumerate(zip(part.events, encoded, strict=True), 1):
            key = event.key
            halves.append((key, *split_event(event, data)))
            groups |= find_stored_groups(event)
            if isinstance(event, KeyedEvent):
                self._rows.keys.append(KeyRow(self._number, nth, key))
            elif isinstance(event, Terminal):
                ends = 1
        self._rows.parts.append(
            PartRow(
                execution_id=int(part.execution_id),
                shard=part.shard,
                epoch=self._epoch,
                after=part.after,
                tenant=part.tenant,
                event_count=len(part.events),
                marks=ends | groups << 1,
                events=pack_events(halves),
            )
        )

    # -- effects --

    def _add_effect(self, effect: Effect) -> None:
        match effect:
            case Finish(command_id=command_id, status=status):
                self._move_command(command_id, status)
            case Issue(command=command, available_at=available_at):
                self._issued[command.command_id] = _CommandWrite(
                    command.command_id, command.attempt, available_at, command=command
                )
            case Requeue():
                self._requeue_command(effect)
            case Park(command_id=command_id):
                self._move_command(command_id, "parked")
            case Stop(commands=commands):
                for command_id in commands:
                    self._stop_command(command_id)
            case SetTimer(timer=timer, due=due):
                self._timers[timer] = due
            case ClearTimer(timer=timer):
                self._timers[timer] = None
            case StartChild():
                self._start_child(effect, next(self._starts))
            case Send(execution_id=execution_id, message=message):
                self._send_message(execution_id, message)
            case AddPart(manifest=manifest, first=first):
                self._pages[manifest, first] = effect
            case AskAdmission(path=path, limit=limit):
                self._add_json_row("admissions", path=path, places=limit)
            case LeaveAdmission(path=path):
                self._add_json_row("admissions", path=path, places=None)
            case SetState():
                self._write_state(effect)
            case _:
                assert_never(effect)

    def _write_state(self, effect: SetState) -> None:
        keys = [event.key for event in self._part.events]
        self._add_json_row(
            "states",
            path=effect.path,
            name=effect.name,
            value=codec.encode(effect.value).decode(),
            expected=effect.expected,
            nth=keys.index(effect.event) + 1,
        )

    def _move_command(self, command_id: CommandId, status: str) -> None:
        row = self._issued.get(command_id) or self._requeued.get(command_id)
        if row is not None:
            if row.status not in FINISHED:
                row.status = status
        elif self._moved.get(command_id, "") not in (*FINISHED, PARKED_THEN_STOPPED):
            self._moved[command_id] = status

    def _requeue_command(self, effect: Requeue) -> None:
        if effect.command_id in self._issued:
            raise NoetlError(f"command {effect.command_id} is issued and queued again at once")
        self._moved.pop(effect.command_id, None)
        self._requeued[effect.command_id] = _CommandWrite(
            effect.command_id, effect.attempt, effect.available_at, journal=effect.journal
        )

    def _stop_command(self, command_id: CommandId) -> None:
        row = self._issued.get(command_id) or self._requeued.get(command_id)
        moved = self._moved.get(command_id)
        if row is not None:
            if row.status not in FINISHED:
                row.status = "cancelled"
                self._send_message(
                    self._part.execution_id, Stopped(command_id=command_id, attempt=row.attempt)
                )
        elif moved == "parked":
            self._moved[command_id] = PARKED_THEN_STOPPED
        elif moved is None:
            self._add_json_row("stops", command=command_id)

    def _send_message(self, execution_id: ExecutionId, message: Message) -> None:
        kind, command = split_message_columns(message)
        self._add_json_row(
            "sends",
            exec=int(execution_id),
            shard=shard_of(execution_id, self._shards),
            kind=kind,
            key=message.key,
            command=command,
            body=codec.encode(message).decode(),
        )

    def _start_child(self, effect: StartChild, start: Start) -> None:
        parent, child = effect.parent, start.execution_id
        notice = Notice(event=ChildStarted(call=parent.call, child=child))
        self._add_json_row(
            "children",
            key=f"child:{parent.execution_id}:{parent.call}",
            exec=int(child),
            shard=shard_of(child, self._shards),
            tenant=start.tenant,
            playbook=start.playbook,
            workload=codec.encode(effect.workload).decode(),
            start=codec.encode(start).decode(),
            parent=int(parent.execution_id),
            parent_shard=shard_of(parent.execution_id, self._shards),
            notice_key=notice.key,
            notice=codec.encode(notice).decode(),
        )

    # -- commands --

    def _hand_off(self) -> None:
        """Lease commands to waiting workers. The first worker that the part names gets the command."""
        workers: dict[CommandId, str] = {}
        for handoff in self._part.handoffs:
            workers.setdefault(handoff.command_id, handoff.worker)
        for command_id, worker in workers.items():
            row = self._issued.get(command_id) or self._requeued.get(command_id)
            if row is not None:
                row.worker = worker
            elif command_id not in self._moved:
                self._add_json_row("handoffs", command=command_id, worker=worker)

    def _add_commands(self) -> None:
        number = self._number
        for command_id, status in self._moved.items():
            if status == PARKED_THEN_STOPPED:
                self._add_json_row("moves", command=command_id)
            else:
                self._rows.moved.append(MovedRow(number, command_id, status))
        for row in self._issued.values():
            command = row.command
            assert command is not None
            self._rows.issued.append(
                IssuedRow(
                    part=number,
                    command_id=row.command_id,
                    step=command.step,
                    kind=command.kind,
                    pool=command.pool,
                    priority=command.priority,
                    status=row.status,
                    attempt=row.attempt,
                    available_at=row.available_at,
                    worker=row.worker,
                    body=compress_json(codec.encode(command)),
                )
            )
        for row in self._requeued.values():
            self._add_json_row(
                "requeues",
                command=row.command_id,
                attempt=row.attempt,
                journal=codec.encode(row.journal).decode(),
                micros=row.available_at,
                status=row.status,
                worker=row.worker,
            )
