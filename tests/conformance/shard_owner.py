"""Small facts for the suites: an owned shard, an execution of it, a command, a part."""

from dataclasses import dataclass, field
from typing import Any

from noetl.log.events.port import AppendBatch, Appended, ExecutionPart, Handoff, Outcome
from noetl.model.commands import Command
from noetl.model.decisions import Effect, Issue
from noetl.model.envelope import Envelope
from noetl.model.events import (
    CommandCompleted,
    CommandIssued,
    Event,
    PlaybookCompleted,
    PlaybookInitialized,
    Reported,
    SignalReceived,
    TaskDone,
)
from noetl.model.exchange import LeaseKey
from noetl.model.ids import DEFAULT_TENANT, ActivationId, CommandId, ExecutionId, TimerId, shard_of
from noetl.model.messages import Report, Start, StoredRef
from tests.conformance.conftest import SHARDS, PortWorld

LEASE = 6_000_000
OK = Envelope(status="ok")


def execution(shard: int, number: int = 0) -> ExecutionId:
    """The nth id that falls into the shard."""
    found = [n for n in range(1, 400) if shard_of(str(n), SHARDS) == shard]
    return ExecutionId(str(found[number]))


def make_start(execution_id: ExecutionId) -> Event:
    return PlaybookInitialized(execution_id=execution_id, path="p", playbook="hash")


def signal_like(key: str) -> Event:
    """An event that may be repeated, with a request that the test chooses."""
    return SignalReceived(name="s", request=key)


def make_end() -> Event:
    return PlaybookCompleted()


def command(execution_id: ExecutionId, name: str = "c1", **fields: Any) -> Command:
    return Command(
        command_id=CommandId(name),
        execution_id=execution_id,
        playbook="hash",
        step="s",
        activation=ActivationId("a"),
        **fields,
    )


def make_completed(name: str = "c1", attempt: int = 1) -> Reported:
    return CommandCompleted(command_id=CommandId(name), attempt=attempt, result=OK)


def journal(name: str = "c1", attempt: int = 1, run: int = 1) -> Reported:
    return TaskDone(
        command_id=CommandId(name), attempt=attempt, task="t", run=run, goto=1, result=OK
    )


def report(execution_id: ExecutionId, event: Any, refs: tuple[StoredRef, ...] = ()) -> Report:
    return Report(
        execution_id=execution_id,
        command_id=event.command_id,
        attempt=event.attempt,
        worker="w1",
        event=event,
        refs=refs,
    )


@dataclass
class ShardOwner:
    """The owner of every shard, as an appender sees it."""

    world: PortWorld
    runtime_id: int
    epochs: dict[int, int] = field(default_factory=dict)

    async def append(self, *parts: ExecutionPart) -> list[Outcome]:
        return await self.world.log.append(
            AppendBatch(epochs=self.epochs, parts=parts, lease=LEASE)
        )

    async def part(
        self,
        execution_id: ExecutionId,
        *events: Event,
        effects: tuple[Effect, ...] = (),
        taken: tuple[LeaseKey, ...] = (),
        inbox: tuple[int, ...] = (),
        timers: tuple[TimerId, ...] = (),
        handoffs: tuple[Handoff, ...] = (),
        starts: tuple[Start, ...] = (),
        refs: tuple[StoredRef, ...] = (),
        after: int | None = None,
    ) -> ExecutionPart:
        return ExecutionPart(
            execution_id=execution_id,
            shard=shard_of(execution_id, SHARDS),
            tenant=DEFAULT_TENANT,
            after=await self.world.log.read_last_seq(execution_id) if after is None else after,
            events=events,
            effects=effects,
            taken=taken,
            inbox=inbox,
            timers=timers,
            handoffs=handoffs,
            refs=refs,
            children=tuple(start.execution_id for start in starts),
            child_starts=starts,
        )

    async def write(self, execution_id: ExecutionId, *events: Event, **fields: Any) -> Appended:
        """A part that must be applied."""
        (outcome,) = await self.append(await self.part(execution_id, *events, **fields))
        assert isinstance(outcome, Appended), outcome
        return outcome

    async def issue(self, execution_id: ExecutionId, name: str = "c1", **fields: Any) -> Command:
        made = command(execution_id, name, **fields)
        issued = CommandIssued(
            command_id=made.command_id,
            step="s",
            activation=made.activation,
            kind="run",
            pool=made.pool,
        )
        await self.write(execution_id, issued, effects=(Issue(made),))
        return made

    async def lease_command(
        self, execution_id: ExecutionId, name: str = "c1", worker: str = "w1"
    ) -> Command:
        await self.issue(execution_id, name)
        (claimed,) = await self.world.queue.claim_commands(
            DEFAULT_TENANT, worker, ("cpu",), 1, LEASE
        )
        return claimed


async def owner(world: PortWorld) -> ShardOwner:
    runtime = await world.leases.register("server", None, 3_600_000_000)
    claimed = await world.leases.claim(runtime.runtime_id, SHARDS)
    return ShardOwner(world, runtime.runtime_id, {each.shard: each.epoch for each in claimed})


async def messages(world: PortWorld, execution_id: ExecutionId) -> list[Any]:
    rows = await world.inbox.read_messages(list(range(SHARDS)), 1000)
    return [row.message for row in rows if row.execution_id == execution_id]
