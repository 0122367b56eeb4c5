"""How long results stay: by scope and age, never while somebody may need them, never what is pinned; and orphans."""

from typing import Any

import pytest

from noetl.log.lifetimes.port import JudgedCounts, ReferenceLife, StepKey, StorageUsage
from noetl.log.projections.port import Projection, ShardRows
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, RefId, shard_of
from noetl.model.messages import Start, StoredRef
from noetl.model.reference import Lifetime, Reference
from tests.conformance.conftest import SHARDS, PortWorld
from tests.conformance.shard_owner import (
    ShardOwner,
    execution,
    make_completed,
    make_end,
    make_start,
    owner,
    report,
)

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
DATA = b"[1]"


class Home:
    """Executions with results, as the log and the projection have them."""

    def __init__(self, world: PortWorld, one: ShardOwner) -> None:
        self.world = world
        self.one = one
        self.number = 0
        self.rows: dict[ExecutionId, Projection] = {}

    async def begin(self, shard: int = 0, **family: Any) -> ExecutionId:
        id_ = execution(shard, sum(shard_of(each, SHARDS) == shard for each in self.rows))
        await self.world.inbox.start_execution(
            Start(execution_id=id_, path="p", playbook="hash"), {}
        )
        await self.one.write(id_, make_start(id_))
        await self._project(id_, "running", None, **family)
        return id_

    async def store(
        self, id_: ExecutionId, lifetime: Lifetime | None = None, step: str = "s"
    ) -> Reference:
        reference = self.reference(id_, step)
        await self.one.write(
            id_, refs=(StoredRef(reference=reference, payload=DATA, lifetime=lifetime),)
        )
        return reference

    def reference(self, id_: ExecutionId, step: str = "s") -> Reference:
        self.number += 1
        uri = f"noetl://execution/{id_}/result/{step}/c-1-t{self.number}"
        return Reference(
            ref_id=RefId(str(self.number)), type="kv", uri=uri, bytes=len(DATA), format="json"
        )

    async def end(self, id_: ExecutionId) -> None:
        await self.one.write(id_, make_end())
        row = self.rows[id_]
        await self._project(
            id_, "completed", self.world.clock.now(), parent=row.parent, retry_of=row.retry_of
        )

    async def _project(
        self, id_: ExecutionId, status: str, ended_at: int | None, **family: Any
    ) -> None:
        now, shard = self.world.clock.now(), shard_of(id_, SHARDS)
        seq = await self.world.log.read_last_seq(id_)
        row = self.rows[id_] = Projection(
            execution_id=id_, shard=shard, tenant=DEFAULT_TENANT, path="p", status=status, last_seq=seq,
            started_at=now, updated_at=now, ended_at=ended_at, **family,
        )  # fmt: skip
        assert await self.world.projections.write_projections(
            [ShardRows(shard, self.one.epochs[shard], seq, (row,))]
        ) == [True]

    async def judge(
        self, after: int = 0, *, grace: int = 0, retention: int | None = DAY, limit: int = 50
    ) -> JudgedCounts:
        await self.world.pass_time(after)
        return await self.world.lifetimes.expire_results(grace, retention, limit)

    async def has(self, reference: Reference) -> bool:
        """Both of what can be told: whether it has expired, and whether its payload is there."""
        life = (await self.world.lifetimes.read_lifetimes([reference.ref_id]))[reference.ref_id]
        there = (
            await self.world.payloads.read_payload(DEFAULT_TENANT, reference.ref_id, reference.uri)
            is not None
        )
        assert there == (life.expired_at is None)
        (traced,) = await self.world.lineage.trace_references(
            DEFAULT_TENANT, [reference.ref_id], 0, None, 1
        )
        assert traced.expired_at == life.expired_at
        return there


async def home(world: PortWorld) -> Home:
    return Home(world, await owner(world))


async def test_a_result_goes_when_its_execution_has_been_over_for_the_retention(
    world: PortWorld,
) -> None:
    here = await home(world)
    id_ = await here.begin()
    one = await here.store(id_)
    assert await here.judge(30 * DAY) == JudgedCounts()  # it runs, however old it is
    await here.end(id_)
    assert await here.judge(DAY - 1) == JudgedCounts(looked=1)
    assert await here.has(one)
    assert await here.judge(1) == JudgedCounts(looked=1, expired=1)
    assert not await here.has(one)
    assert (await world.lifetimes.read_lifetimes([one.ref_id]))[
        one.ref_id
    ].expired_at == world.clock.now()
    assert await world.payloads.find_orphans(DEFAULT_TENANT, id_, [one.uri]) == [one.uri]
    assert await here.judge(99 * DAY) == JudgedCounts()  # nothing of it is left to judge


async def test_without_a_retention_results_stay_and_one_that_is_set_later_counts(
    world: PortWorld,
) -> None:
    here = await home(world)
    id_ = await here.begin()
    one = await here.store(id_)
    await here.end(id_)
    assert await here.judge(99 * DAY, retention=None) == JudgedCounts(looked=1)
    assert await here.judge(99 * DAY, retention=None) == JudgedCounts()
    assert await here.has(one)
    assert (await here.judge(retention=999 * DAY)).expired == 0
    assert (await here.judge(retention=9 * DAY)).expired == 1


@pytest.mark.parametrize(
    ("lifetime", "stays"),
    [
        (Lifetime("step"), 0),
        (Lifetime("execution"), DAY),
        (Lifetime("permanent"), None),
        (Lifetime("execution", HOUR), HOUR),
        (Lifetime("step", 5 * DAY), 5 * DAY),
    ],
)
async def test_the_lifetime_that_a_task_asks_for_wins(
    world: PortWorld, lifetime: Lifetime, stays: int | None
) -> None:
    here = await home(world)
    id_ = await here.begin()
    one = await here.store(id_, lifetime)
    await here.end(id_)
    assert (await world.lifetimes.read_lifetimes([one.ref_id]))[one.ref_id] == ReferenceLife(
        lifetime
    )
    if stays:
        assert (await here.judge(stays - 1)).expired == 0
    assert (await here.judge(99 * DAY if stays is None else min(stays, 1))).expired == (
        stays is not None
    )
    assert await here.has(one) == (stays is None)


@pytest.mark.parametrize("grace", [0, HOUR])
async def test_the_retention_counts_while_another_result_has_longer_to_live(
    world: PortWorld, grace: int
) -> None:
    here = await home(world)
    id_ = await here.begin()
    plain, long = await here.store(id_), await here.store(id_, Lifetime("execution", 365 * DAY))
    await here.end(id_)
    assert await here.judge(HOUR, grace=grace) == JudgedCounts(looked=1)
    assert await here.judge(DAY - HOUR - 1, grace=grace) == JudgedCounts()
    assert await here.judge(1, grace=grace) == JudgedCounts(looked=1, expired=1)
    assert (await here.has(plain), await here.has(long)) == (False, True)
    assert await here.judge(99 * DAY, grace=grace) == JudgedCounts()
    assert await here.judge(265 * DAY, grace=grace) == JudgedCounts(looked=1, expired=1)
    assert await here.judge(99 * DAY, grace=grace) == JudgedCounts()


async def test_a_result_that_has_less_to_live_goes_while_the_retention_keeps_another(
    world: PortWorld,
) -> None:
    here = await home(world)
    id_ = await here.begin()
    plain, short = await here.store(id_), await here.store(id_, Lifetime("execution", 5 * DAY))
    await here.end(id_)
    assert await here.judge(retention=None) == JudgedCounts(looked=1)
    assert await here.judge(5 * DAY, retention=None) == JudgedCounts(looked=1, expired=1)
    assert (await here.has(plain), await here.has(short)) == (True, False)
    assert await here.judge(retention=9 * DAY) == JudgedCounts()
    assert await here.judge(4 * DAY, retention=9 * DAY) == JudgedCounts(looked=1, expired=1)


async def test_a_retention_that_is_set_later_counts_while_another_result_has_longer_to_live(
    world: PortWorld,
) -> None:
    here = await home(world)
    id_ = await here.begin()
    plain, long = await here.store(id_), await here.store(id_, Lifetime("execution", 365 * DAY))
    await here.end(id_)
    assert await here.judge(2 * DAY, retention=None) == JudgedCounts(looked=1)
    assert await here.judge(2 * DAY, retention=None) == JudgedCounts()
    assert await here.judge() == JudgedCounts(looked=1, expired=1)
    assert (await here.has(plain), await here.has(long)) == (False, True)


async def test_a_lifetime_that_comes_with_a_report_for_another_owner_counts_too(
    world: PortWorld,
) -> None:
    here = await home(world)
    id_ = await here.begin()
    await here.one.lease_command(id_)
    one = here.reference(id_)
    stored = StoredRef(reference=one, payload=DATA, lifetime=Lifetime("step", 7))
    assert await world.inbox.accept_report(DEFAULT_TENANT, report(id_, make_completed(), (stored,)))
    assert (await world.lifetimes.read_lifetimes([one.ref_id]))[one.ref_id] == ReferenceLife(
        Lifetime("step", 7)
    )


async def test_nothing_goes_before_the_grace_is_over(world: PortWorld) -> None:
    here = await home(world)
    id_ = await here.begin()
    one = await here.store(id_, Lifetime("step"))
    await here.end(id_)
    assert await here.judge(HOUR - 1, grace=HOUR) == JudgedCounts()
    assert await here.has(one)
    assert await here.judge(1, grace=HOUR) == JudgedCounts(looked=1, expired=1)


@pytest.mark.parametrize("kind", ["parent", "retry_of"])
async def test_what_a_relative_that_lives_may_need_stays(world: PortWorld, kind: str) -> None:
    """The one above, the one below, and one beside it that has the same root."""
    here = await home(world)
    root = await here.begin(0)
    child = await here.begin(1, **{kind: root})
    other = await here.begin(2, **{kind: root})
    grandchild = await here.begin(3, **{kind: child})
    family = (root, child, other, grandchild)
    refs = [await here.store(id_, Lifetime("step")) for id_ in family]
    for id_ in family[:3]:
        await here.end(id_)
        assert (await here.judge(99 * DAY)).expired == 0
    await here.end(grandchild)
    assert (await here.judge(99 * DAY)).expired == 4
    assert not any([await here.has(each) for each in refs])


async def test_the_scope_of_a_workflow_ends_with_the_one_that_began_it(world: PortWorld) -> None:
    here = await home(world)
    root = await here.begin(0)
    child = await here.begin(1, parent=root)
    own, shared = await here.store(child), await here.store(child, Lifetime("workflow"))
    await here.end(child)
    assert (await here.judge(5 * DAY)).expired == 0
    await here.end(root)
    assert (await here.judge(MINUTE - 1)).expired == 0  # it was looked at a moment ago
    assert (await here.judge(1)).expired == 1
    assert (await here.has(own), await here.has(shared)) == (False, True)
    assert (await here.judge(DAY - MINUTE - 1)).expired == 0
    assert (await here.judge(1)).expired == 1


async def test_what_is_pinned_stays_until_it_is_not(world: PortWorld) -> None:
    here = await home(world)
    id_ = await here.begin()
    kept, other = await here.store(id_, step="kept"), await here.store(id_, step="other")
    await world.lifetimes.pin_results([StepKey(id_, "kept")])
    await world.lifetimes.pin_results([StepKey(id_, "kept")])
    await here.end(id_)
    assert (await here.judge(99 * DAY)).expired == 1
    assert (await here.has(kept), await here.has(other)) == (True, False)
    assert await world.lifetimes.list_pinned_steps([id_, execution(1)]) == [StepKey(id_, "kept")]
    assert await world.payloads.find_orphans(DEFAULT_TENANT, id_, [kept.uri]) == []
    await world.lifetimes.unpin_results([StepKey(id_, "kept"), StepKey(id_, "never")])
    assert await world.lifetimes.list_pinned_steps([id_]) == []
    assert (await here.judge()).expired == 1


async def test_small_payloads_that_no_report_named_are_swept(world: PortWorld) -> None:
    here = await home(world)
    id_ = await here.begin()
    named, orphan = here.reference(id_), here.reference(id_)
    for each in (named, orphan):
        await world.payloads.put_payload(DEFAULT_TENANT, each, DATA)
    await here.one.write(id_, refs=(StoredRef(reference=named),))
    assert (await here.judge(99 * DAY, retention=None)).swept == 0
    assert await world.payloads.read_payload(DEFAULT_TENANT, orphan.ref_id, orphan.uri) == DATA
    await here.end(id_)
    assert await here.judge(retention=None) == JudgedCounts(looked=1, swept=1)
    assert await world.payloads.read_payload(DEFAULT_TENANT, orphan.ref_id, orphan.uri) is None
    assert await here.has(named)


async def test_one_run_looks_at_so_many_and_the_next_goes_on(world: PortWorld) -> None:
    here = await home(world)
    ids = [await here.begin(shard) for shard in (0, 0, 1)]
    for id_ in ids:
        await here.store(id_, Lifetime("step"))
        await here.end(id_)
        await world.pass_time(1)
    assert [await here.judge(limit=2) for _ in range(3)] == [
        JudgedCounts(2, 2),
        JudgedCounts(1, 1),
        JudgedCounts(),
    ]


async def test_usage_counts_what_is_there_and_apart_from_it_what_was(world: PortWorld) -> None:
    here = await home(world)
    one, other = await here.begin(0), await here.begin(1)
    await here.store(one)
    await here.store(one, Lifetime("step"))
    await here.store(other)
    counts = sorted([(one, 2), (other, 1)], key=lambda each: int(each[0]))
    assert await world.lifetimes.read_usage([one, other, execution(2)]) == [
        StorageUsage(id_, "kv", count, count * len(DATA)) for id_, count in counts
    ]
    await here.end(one)
    await here.judge(1)
    assert await world.lifetimes.read_usage([one]) == [
        StorageUsage(one, "kv", 1, len(DATA), expired=1)
    ]
