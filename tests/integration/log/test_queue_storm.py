"""Everyone at the queue at once: claiming, reporting to the owner and past it, losing leases. Each command ends exactly once."""

import asyncio
from collections import Counter, defaultdict
from random import Random

from noetl.log.events.port import AppendBatch, Appended, ExecutionPart, Known, StaleAttempt
from noetl.model.commands import Command, Journal
from noetl.model.decisions import Effect, Finish, Issue, Requeue
from noetl.model.envelope import Envelope
from noetl.model.events import CommandCompleted, CommandIssued, CommandReclaimed, Event
from noetl.model.exchange import LeaseKey
from noetl.model.ids import DEFAULT_TENANT, ActivationId, CommandId, ExecutionId, shard_of
from noetl.model.messages import LeaseLost, Report
from tests.integration.log.conftest import SHARDS, Store, store
from tests.waiting import wait_until

EXECUTIONS = [ExecutionId(str(number)) for number in range(1, 9)]
COMMANDS = 25  # of each execution
LEASE = 400_000


def ending(command: Command) -> CommandCompleted:
    return CommandCompleted(
        command_id=command.command_id, attempt=command.attempt, result=Envelope(status="ok")
    )


class StormOwner:
    """Decides one execution at a time, as a dispatcher does; consumes its inbox."""

    def __init__(self, here: Store) -> None:
        self.here = here
        self.turn: dict[ExecutionId, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.live: dict[CommandId, ExecutionId] = {}

    async def write(
        self, execution_id: ExecutionId, events: tuple[Event, ...], **fields: object
    ) -> object:
        async with self.turn[execution_id]:
            part = ExecutionPart(
                execution_id=execution_id,
                shard=shard_of(execution_id, SHARDS),
                tenant=DEFAULT_TENANT,
                after=await self.here.stores.log.read_last_seq(execution_id),
                events=events,
                **fields,  # type: ignore[arg-type]
            )
            (outcome,) = await self.here.stores.log.append(
                AppendBatch(epochs=self.here.epochs, parts=(part,), lease=LEASE)
            )
            return outcome

    async def issue(self) -> None:
        for execution_id in EXECUTIONS:
            commands = [
                Command(
                    command_id=CommandId(f"{execution_id}.{number}"),
                    execution_id=execution_id,
                    playbook="h",
                    step="s",
                    activation=ActivationId("a"),
                )
                for number in range(COMMANDS)
            ]
            events: list[Event] = [
                CommandIssued(
                    command_id=each.command_id,
                    step="s",
                    activation=each.activation,
                    kind="run",
                    pool="cpu",
                )
                for each in commands
            ]
            effects: tuple[Effect, ...] = tuple(Issue(each) for each in commands)
            assert isinstance(
                await self.write(execution_id, tuple(events), effects=effects), Appended
            )
            self.live |= {each.command_id: execution_id for each in commands}

    async def drain(self) -> None:
        while self.live:
            for row in await self.here.stores.inbox.read_messages(list(range(SHARDS)), 50):
                event: Event
                effect: Effect
                match row.message:
                    case Report(event=reported):
                        event, effect = reported, Finish(reported.command_id)
                    case LeaseLost(command_id=command_id, attempt=attempt):
                        event = CommandReclaimed(command_id=command_id, attempt=attempt + 1)
                        effect = Requeue(command_id, attempt + 1, Journal())
                    case _:
                        raise AssertionError(row)
                outcome = await self.write(
                    row.execution_id, (event,), effects=(effect,), inbox=(row.inbox_id,)
                )
                assert isinstance(outcome, Appended), (row, outcome)
                if isinstance(event, CommandCompleted):
                    self.live.pop(event.command_id)
            await asyncio.sleep(0)


async def test_each_command_ends_once_whoever_reports_it(migrated: str) -> None:
    async with store(migrated, connections=10) as here:
        await here.claim_shards()
        owner, stores = StormOwner(here), here.stores
        await owner.issue()
        accepted: Counter[CommandId] = Counter()
        holders: Counter[tuple[CommandId, int]] = Counter()
        stale = 0

        async def report(command: Command, way: int) -> None:
            nonlocal stale
            if way == 0:
                held = (LeaseKey(command.command_id, command.attempt),)
                finish = (Finish(command.command_id),)
                outcome = await owner.write(
                    command.execution_id, (ending(command),), taken=held, effects=finish
                )
                if isinstance(outcome, Appended):
                    accepted[command.command_id] += 1
                    owner.live.pop(command.command_id)
                else:
                    assert isinstance(outcome, StaleAttempt | Known), outcome
                    stale += 1
            else:
                told = Report(
                    execution_id=command.execution_id,
                    command_id=command.command_id,
                    attempt=command.attempt,
                    worker="w",
                    event=ending(command),
                )
                if await stores.inbox.accept_report(DEFAULT_TENANT, told):
                    accepted[command.command_id] += 1
                    assert await stores.inbox.accept_report(
                        DEFAULT_TENANT, told
                    )  # the reply may have been lost
                else:
                    stale += 1

        async def is_leased(worker: str, command: Command) -> bool:
            return any(
                (each.command_id, each.attempt) == (command.command_id, command.attempt)
                for each in await stores.queue.list_leased_commands(DEFAULT_TENANT, worker)
            )

        async def work(number: int) -> None:
            random, worker = Random(number), f"w{number}"
            while owner.live:
                claimed = await stores.queue.claim_commands(
                    DEFAULT_TENANT, worker, ("cpu",), random.randrange(1, 6), LEASE
                )
                for command in claimed:
                    holders[command.command_id, command.attempt] += 1
                    way = random.randrange(6)
                    if way == 5 and command.attempt < 4:
                        continue  # forgotten: its lease runs out
                    if way == 4 and command.attempt < 4:
                        await wait_until(
                            lambda held=command: is_leased(worker, held), False
                        )  # too late
                    await stores.queue.renew_leases(
                        DEFAULT_TENANT,
                        worker,
                        (LeaseKey(command.command_id, command.attempt),),
                        LEASE,
                    )
                    await report(command, way % 2)
                if not claimed:
                    await asyncio.sleep(0)

        async def expire() -> None:
            while owner.live:
                await stores.queue.expire_leases(7)
                await asyncio.sleep(0)

        await asyncio.gather(
            owner.drain(), expire(), expire(), *[work(number) for number in range(6)]
        )
        assert set(holders.values()) == {1}, "an attempt was leased twice"
        assert set(accepted.values()) == {1}
        assert len(accepted) == len(EXECUTIONS) * COMMANDS
        for execution_id in EXECUTIONS:
            ends = [
                each
                for each in await stores.log.read_events(execution_id)
                if isinstance(each.event, CommandCompleted)
            ]
            assert len(ends) == COMMANDS
