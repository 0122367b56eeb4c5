"""Random work on the memory twin and on Postgres at once: every outcome and everything that can be read agrees."""

import os
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest

from noetl.log.events.port import AppendBatch, Appended, ExecutionPart, Handoff, Outcome
from noetl.model.commands import Journal
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
    SetTimer,
    StartChild,
    Stop,
)
from noetl.model.errors import NoetlError
from noetl.model.events import Event, Parent
from noetl.model.exchange import LeaseKey
from noetl.model.ids import DEFAULT_TENANT, CommandId, ExecutionId, TimerId, shard_of
from noetl.model.messages import Cancel, Pause, Start, StoredRef
from noetl.model.reference import Reference
from tests.conformance.conftest import SHARDS, PortWorld, memory, postgres
from tests.conformance.shard_owner import (
    LEASE,
    command,
    journal,
    make_completed,
    make_end,
    make_start,
    report,
    signal_like,
)

STEPS = 150
SEEDS = range(int(os.environ.get("NOETL_TEST_SEEDS", "4")))
EXECUTIONS = [ExecutionId(str(number)) for number in range(1, 9)]
CHILDREN = [ExecutionId(str(number)) for number in range(100, 140)]
WORKERS = ("w1", "w2")


class Both:
    def __init__(self, memory_world: PortWorld, postgres_world: PortWorld, seed: int) -> None:
        self.worlds = (memory_world, postgres_world)
        self.random = Random(seed)
        self.commands: dict[CommandId, ExecutionId] = {}
        self.epochs: dict[int, int] = {}
        self.number = 0
        self.applied = 0

    async def each(self, port: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """The same call on both; what they answer, or raise, must be the same."""
        answers = []
        for world in self.worlds:
            try:
                answers.append(await getattr(getattr(world, port), name)(*args, **kwargs))
            except NoetlError as error:
                answers.append(type(error).__mro__[-4:])  # ours; the words may differ
        assert answers[0] == answers[1], (name, args)
        return answers[0]

    def clock(self) -> int:
        return self.worlds[0].clock.now()

    async def pass_time(self) -> None:
        micros = self.random.choice((1_000, 1_000_000, LEASE, 3_600_000_000))
        for world in self.worlds:
            await world.pass_time(micros)

    # -- work --

    def one(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def some_command(self, of: ExecutionId | None = None) -> CommandId:
        """Of the execution given, when it has one: only its own part changes a command."""
        known = [each for each, execution in self.commands.items() if of in (None, execution)]
        return self.random.choice(known) if known else CommandId("never issued")

    async def inbox_of(self, execution_id: ExecutionId) -> list[list[int]]:
        """Ids of its rows in each world, which number them differently, in the same order of keys."""
        found = []
        for world in self.worlds:
            rows = await world.inbox.read_messages(list(range(SHARDS)), 10_000)
            mine = sorted(
                (row for row in rows if row.execution_id == execution_id),
                key=lambda row: row.message.key,
            )
            found.append([row.inbox_id for row in mine])
        return found

    async def effects(
        self, execution_id: ExecutionId, others: list[ExecutionId]
    ) -> tuple[list[Effect], list[Start]]:
        made: list[Effect] = []
        starts: list[Start] = []
        for _ in range(self.random.randrange(5)):
            self.number += 1
            mine = self.some_command(execution_id)
            match self.random.randrange(13):
                case 0 | 1 | 2:
                    new = command(
                        execution_id,
                        f"c{self.number}",
                        pool=self.one("cpu", "gpu"),
                        priority=self.one(0, 0, 5),
                    )
                    self.commands[new.command_id] = execution_id
                    made.append(Issue(new, self.one(None, None, self.clock() + 1_000_000)))
                case 3:
                    made.append(Finish(mine, self.one("done", "dead", "cancelled")))
                case 4:
                    made.append(Park(mine))
                case 5:
                    made.append(Stop((mine, self.some_command(execution_id))))
                case 6:
                    status = await self.each("queue", "find_status", mine)
                    if status is not None and status[0] not in ("done", "dead", "cancelled"):
                        again = Requeue(
                            mine,
                            status[1] + 1,
                            Journal(goto=self.number),
                            self.one(None, self.clock() + 500),
                        )
                        made.append(again)
                case 7:
                    made.append(
                        SetTimer(
                            TimerId(self.one("a", "b")), self.clock() + self.one(0, 1_000, LEASE)
                        )
                    )
                case 8:
                    made.append(ClearTimer(TimerId(self.one("a", "b"))))
                case 9:
                    # not to another part of the batch: whether it comes before or after what that one consumes is open
                    to = self.random.choice([each for each in EXECUTIONS if each not in others])
                    made.append(Send(to, Cancel(request=f"r{self.random.randrange(5)}")))
                case 10:
                    page = Reference(
                        ref_id="1",
                        type="kv",
                        uri="noetl://execution/1/result/s/k",
                        rows=self.number,
                    )  # type: ignore[arg-type]
                    made.append(
                        AddPart(f"m{execution_id}", self.random.randrange(3) * 10, 10, page)
                    )
                case 11:
                    path = self.one("p", "q")
                    made.append(self.one(AskAdmission(path, self.one(1, 2)), LeaveAdmission(path)))
                case 12:
                    parent = Parent(execution_id, f"call{self.random.randrange(3)}")
                    made.append(
                        StartChild(parent=parent, path="child", workload={"n": self.number})
                    )
                    child = self.random.choice(CHILDREN)
                    starts.append(
                        Start(execution_id=child, path="child", playbook="h", parent=parent)
                    )
        return made, starts

    async def parts(self) -> list[tuple[ExecutionPart, ...]]:
        """The same parts for both worlds; inbox rows by each one's own numbers."""
        batch: list[list[ExecutionPart]] = [[], []]
        chosen = self.random.sample(EXECUTIONS, self.random.randrange(1, 5))
        for execution_id in chosen:
            self.number += 1
            effects, starts = await self.effects(
                execution_id, [each for each in chosen if each != execution_id]
            )
            last = await self.each("log", "read_last_seq", execution_id)
            events: list[Event] = [
                signal_like(f"e{self.random.randrange(200)}")
                for _ in range(self.random.randrange(3))
            ]
            if last == 0 and self.random.random() < 0.8:
                events.insert(0, make_start(execution_id))
            if self.random.random() < 0.02:
                events.append(make_end())
            taken, timers, handoffs = [], [], []
            mine = self.some_command(execution_id)
            if self.random.random() < 0.4:
                status = await self.each("queue", "find_status", mine)
                taken.append(LeaseKey(mine, self.one(1, status[1] if status else 2)))
                events.append(self.one(make_completed(mine), journal(mine, run=self.number)))
            if self.random.random() < 0.2:
                timers.append(TimerId(self.one("a", "b")))
            for effect in effects:
                if isinstance(effect, Issue) and self.random.random() < 0.5:
                    handoffs.append(Handoff(effect.command.command_id, self.one(*WORKERS)))
            if self.random.random() < 0.1:
                handoffs.append(Handoff(mine, "w1"))
            rows = await self.inbox_of(execution_id)
            count = self.one(0, 0, len(rows[0]), min(1, len(rows[0])))
            gone = self.random.random() < 0.05
            reference = Reference(
                ref_id=str(self.random.randrange(1, 50)), type="kv", uri=f"u{self.number}"
            )  # type: ignore[arg-type]
            for world, ids in zip(batch, rows, strict=True):
                world.append(
                    ExecutionPart(
                        execution_id=execution_id,
                        shard=shard_of(execution_id, SHARDS),
                        tenant=DEFAULT_TENANT,
                        after=last,
                        events=tuple(events),
                        effects=tuple(effects),
                        taken=tuple(taken),
                        inbox=tuple(ids[:count]) + ((999_999_999,) if gone else ()),
                        timers=tuple(timers),
                        refs=(StoredRef(reference=reference, payload=b"x"),),
                        handoffs=tuple(handoffs),
                        children=tuple(start.execution_id for start in starts),
                        child_starts=tuple(starts),
                    )
                )
        return [tuple(parts) for parts in batch]

    async def append(self) -> None:
        epochs = dict(self.epochs)
        if self.random.random() < 0.1:
            epochs[self.random.randrange(SHARDS)] = 99
        answers: list[list[Outcome] | type] = []
        for world, parts in zip(self.worlds, await self.parts(), strict=True):
            try:
                answers.append(
                    await world.log.append(AppendBatch(epochs=epochs, parts=parts, lease=LEASE))
                )
            except NoetlError as error:
                answers.append(type(error))
        assert answers[0] == answers[1]
        if isinstance(answers[0], list):
            self.applied += sum(isinstance(each, Appended) for each in answers[0])

    async def step(self) -> None:
        mine = self.some_command()
        execution_id = self.commands.get(mine, EXECUTIONS[0])
        match self.random.randrange(12):
            case 0:
                await self.each(
                    "queue",
                    "claim_commands",
                    DEFAULT_TENANT,
                    self.one(*WORKERS),
                    self.one(("cpu",), ("cpu", "gpu")),
                    2,
                    LEASE,
                )
            case 1:
                held = (LeaseKey(mine, 1), LeaseKey(self.some_command(), 1))
                await self.each(
                    "queue", "renew_leases", DEFAULT_TENANT, self.one(*WORKERS), held, LEASE
                )
            case 2:
                await self.each("queue", "expire_leases", 10_000)
            case 3:
                if self.random.random() < 0.3:
                    await self.each("queue", "end_leases", self.one(*WORKERS))
            case 4 | 5:
                status = await self.each("queue", "find_status", mine)
                event = self.one(make_completed, journal)(
                    mine, self.one(1, status[1] if status else 1)
                )
                await self.each(
                    "inbox", "accept_report", DEFAULT_TENANT, report(execution_id, event)
                )
            case 6:
                await self.pass_time()
            case 7:
                await self.each(
                    "inbox",
                    "post_message",
                    self.random.choice(EXECUTIONS),
                    Pause(request=f"r{self.random.randrange(4)}"),
                )
            case 8:
                start = Start(
                    execution_id=self.random.choice(EXECUTIONS),
                    path="p",
                    playbook="h",
                    start_key=self.one(None, "k1", "k2"),
                )
                await self.each("inbox", "start_execution", start, {"z": 1, "a": self.number})
            case _:
                await self.append()

    async def compare(self) -> None:
        """Everything that the port can read."""
        shards = list(range(SHARDS))
        for world_events in [
            await self.each("log", "follow_shard", shard, 0, 10_000) for shard in shards
        ]:
            assert [each.seq for each in world_events] == list(range(1, len(world_events) + 1))
        assert sorted(await self._inbox(0)) == sorted(await self._inbox(1))
        await self.each("inbox", "read_due_timers", shards, 1000)
        await self.each("inbox", "find_next_timer", shards)
        await self.each("queue", "count_commands")
        for each in self.commands:
            await self.each("queue", "find_status", each)
        for each in (*EXECUTIONS, *CHILDREN):
            await self.each("log", "read_pinned", each)
            await self.each("log", "read_manifest", DEFAULT_TENANT, f"m{each}")
            await self.each("log", "read_last_seq", each)
        for worker in WORKERS:
            leased = [
                await world.queue.list_leased_commands(DEFAULT_TENANT, worker)
                for world in self.worlds
            ]
            assert sorted(leased[0], key=lambda c: c.command_id) == sorted(
                leased[1], key=lambda c: c.command_id
            )

    async def _inbox(self, world: int) -> list[tuple[str, str, str]]:
        rows = await self.worlds[world].inbox.read_messages(list(range(SHARDS)), 10_000)
        return [(row.execution_id, row.message.key, repr(row.message)) for row in rows]


@pytest.mark.parametrize("seed", SEEDS)
async def test_both_logs_answer_alike(seed: int) -> None:
    async with AsyncExitStack() as stack:
        both = Both(
            await stack.enter_async_context(memory()),
            await stack.enter_async_context(postgres()),
            seed,
        )
        for world in both.worlds:
            runtime = await world.leases.register("server", None, 10**15)
            both.epochs = {
                each.shard: each.epoch
                for each in await world.leases.claim(runtime.runtime_id, SHARDS)
            }
        for _ in range(STEPS):
            await both.step()
            if both.random.random() < 0.1:
                await both.compare()
        await both.compare()
        assert both.applied > STEPS / 10, "most of the work was refused: the test says little"
