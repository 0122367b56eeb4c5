"""One execution's share of the next batch: items go in, one `ExecutionPart` comes out."""

import asyncio
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct, field

from noetl.engine.issuing import get_step_pool
from noetl.engine.machine import Advance
from noetl.engine.state import Execution
from noetl.log.events.limits import check_size
from noetl.log.events.port import MAX_BATCH_EVENTS, ExecutionPart, Handoff
from noetl.model.commands import Command
from noetl.model.decisions import Effect, Finish, Issue, Park, Requeue, Stop
from noetl.model.events import Event, StateConflict
from noetl.model.exchange import LeaseKey
from noetl.model.ids import DEFAULT_TENANT, CommandId, ExecutionId, Tenant, TimerId
from noetl.model.messages import Message, Report, Start, StoredRef
from noetl.server.dispatch.children import PreparedChildren
from noetl.server.dispatch.states import LoadedState
from noetl.server.workers.handoff import TenantPool, WaitingRequest, WaitingWorkers

MAX_APPEND_BYTES = 4 * 1024 * 1024
Answer = Literal["ok", "stale", "refused", "retry"]


class InboundItem(Struct, eq=False):
    """A message to an execution: an inbox row, a due timer, or a report just sent by a worker."""

    execution_id: ExecutionId
    message: Message
    answer: "asyncio.Future[Answer]"
    inbox_id: int | None = None
    timer: TimerId | None = None
    tenant: Tenant | None = None  # of the worker that sent it; None: a server did
    known: bool = False  # its event is in the log already: consume it, record nothing
    fatal: str | None = None  # the error to quarantine with: deciding again would fail again
    tries: int = 0
    # by name of the state value: the versions that the last append found
    conflicts: dict[str, StateConflict] = field(default_factory=dict)

    @property
    def report(self) -> Report | None:
        """The message, if a worker sent it as a report and no inbox row holds it.

        The lease of its command fences such a report, and it is lost unless it is answered.
        """
        if self.inbox_id is not None or self.timer is not None:
            return None
        return self.message if isinstance(self.message, Report) else None

    def reply(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class BatchBudget(Struct):
    """How many events and bytes still fit into a batch. The first item always fits."""

    events: int = MAX_BATCH_EVENTS
    bytes: int = MAX_APPEND_BYTES

    def take(self, events: int, size: int) -> bool:
        """Use up this much of the budget; False if it does not fit."""
        is_first = self.events == MAX_BATCH_EVENTS
        if not is_first and (events > self.events or size > self.bytes):
            return False
        self.events -= events
        self.bytes -= size
        return True


class ExecutionBatch(Struct, eq=False):
    """The items, events and effects of one execution in a batch."""

    execution_id: ExecutionId
    shard: int
    after: int
    tenant: Tenant | None = None  # None: no such execution, so nothing is written for it
    loaded: LoadedState | None = None  # None: no such execution, or its log cannot be folded
    state: Execution | None = None  # after the last decided item; None: nothing to cache
    is_quarantined: bool = False  # quarantined: messages wait in the inbox
    events: list[Event] = field(default_factory=list)
    encoded: list[bytes] = field(default_factory=list)  # the events' bytes
    effects: list[Effect] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    taken: dict[LeaseKey, None] = field(default_factory=dict)
    refs: list[StoredRef] = field(default_factory=list)
    items: list[tuple[InboundItem, Answer]] = field(default_factory=list)
    # not consumed, because the execution is quarantined
    left_items: list[InboundItem] = field(default_factory=list)
    keys: dict[InboundItem, frozenset[str]] = field(default_factory=dict)
    # places reserved at waiting workers for commands of this part
    handoffs: list[tuple[WaitingRequest, Command]] = field(default_factory=list)
    handed_ids: set[CommandId] = field(default_factory=set)

    def consume_item(self, item: InboundItem, answer: Answer) -> None:
        """Consume the item with this part. It gets `answer` once the part is written."""
        self.items.append((item, answer))

    def record_decision(
        self,
        item: InboundItem,
        events: tuple[Event, ...],
        advanced: Advance,
        encoded: list[bytes],
        prepared: PreparedChildren,
    ) -> None:
        """Add the decision for this item; `events` are those that its message was turned into."""
        self.keys[item] = frozenset([event.key for event in events])
        self.state = advanced.state
        self.is_quarantined = advanced.state.quarantined is not None
        self.events += advanced.events
        self.encoded += encoded
        self.effects += prepared.effects
        self.starts += prepared.starts
        report = item.report
        if report is not None:
            self.taken[LeaseKey(report.command_id, report.attempt)] = None
            self.refs += report.refs
        self.consume_item(item, "ok")

    def quarantine_with(self, event: Event) -> None:
        """Quarantine the execution with this event, from which no decision follows."""
        self.events.append(event)
        self.encoded.append(check_size(event))
        self.is_quarantined = True

    def reserve_places(self, waiting: WaitingWorkers) -> None:
        """Reserve places at waiting workers for commands that are claimable after this part."""
        for command in _list_claimable(self.effects):
            waiter = waiting.reserve_place(TenantPool(command.tenant, command.pool))
            if waiter is not None:
                self.handoffs.append((waiter, command))

    def give_back(self) -> None:
        for waiter, _ in self.handoffs:
            waiter.give_back()
        self.handoffs.clear()

    def hand_out_commands(self) -> None:
        for waiter, command in self.handoffs:
            waiter.give_command(command)
            self.handed_ids.add(command.command_id)
        self.handoffs.clear()

    def all_items(self) -> list[InboundItem]:
        return [item for item, _ in self.items] + self.left_items

    def list_hinted_pools(self) -> set[TenantPool]:
        """Pools that have new commands for their workers."""
        issued = {
            TenantPool(command.tenant, command.pool)
            for command in _list_claimable(self.effects)
            if command.command_id not in self.handed_ids
        }
        return issued | set(self._list_requeued_pools())

    def _list_requeued_pools(self) -> Iterator[TenantPool]:
        """The pools of requeued commands, from the playbook: their effects do not name a pool."""
        if self.loaded is None or self.state is None:
            return
        fixed = self.loaded.fixed
        steps = fixed.plan.steps
        for effect in self.effects:
            if not isinstance(effect, Requeue) or effect.available_at is not None:
                continue
            live = self.state.commands.get(effect.command_id)
            if live is None:
                continue
            activation = self.state.activations.get(live.activation)
            pool = get_step_pool(steps[live.step].step, live.kind, activation)
            yield TenantPool(fixed.tenant, pool)

    def make_execution_part(self) -> ExecutionPart:
        items = [item for item, _ in self.items]
        tenant = DEFAULT_TENANT if self.tenant is None else self.tenant
        return ExecutionPart(
            execution_id=self.execution_id,
            shard=self.shard,
            tenant=tenant,
            after=self.after,
            events=tuple(self.events),
            encoded=tuple(self.encoded),
            effects=tuple(self.effects),
            taken=tuple(self.taken),
            inbox=tuple(item.inbox_id for item in items if item.inbox_id is not None),
            timers=tuple(item.timer for item in items if item.timer is not None),
            refs=tuple(self.refs),
            handoffs=tuple(
                Handoff(command.command_id, waiter.worker.name) for waiter, command in self.handoffs
            ),
            children=tuple(start.execution_id for start in self.starts),
            child_starts=tuple(self.starts),
        )


def _list_claimable(effects: list[Effect]) -> list[Command]:
    """Commands that these effects issue, and neither end nor park nor delay."""
    claimable: dict[CommandId, Command] = {}
    for effect in effects:
        match effect:
            case Issue(command=command, available_at=None):
                claimable[command.command_id] = command
            case Finish(command_id=ended) | Park(command_id=ended):
                claimable.pop(ended, None)
            case Stop(commands=stopped):
                for ended in stopped:
                    claimable.pop(ended, None)
            case _:
                pass
    return list(claimable.values())
