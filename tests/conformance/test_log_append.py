"""Appending: sequence, fence, compare-and-set, keys, and parts that stand or fall alone."""

import pytest

from noetl.leases.port import ClaimedShard
from noetl.log.events.limits import EventHasRows, EventTooLarge
from noetl.log.events.port import Appended, Known, ShardLost, StaleAttempt
from noetl.model.decisions import Finish, Issue, Send
from noetl.model.envelope import Envelope
from noetl.model.events import CallDone, SignalReceived
from noetl.model.exchange import LeaseKey
from noetl.model.ids import DEFAULT_TENANT, ActivationId, CommandId, RefId, TimerId
from noetl.model.messages import Pause, StoredRef
from noetl.model.reference import Reference
from tests.conformance.conftest import PortWorld
from tests.conformance.shard_owner import (
    command,
    execution,
    journal,
    make_completed,
    make_start,
    messages,
    owner,
    signal_like,
)


async def test_sequence_numbers_of_a_shard_have_no_gaps_and_follow_the_order_of_commits(
    world: PortWorld,
) -> None:
    one = await owner(world)
    first, second = execution(0, 0), execution(0, 1)
    await one.write(first, make_start(first), signal_like("a"))
    await one.write(second, make_start(second))
    last = await one.write(first, signal_like("b"))
    followed = await world.log.follow_shard(0, 0, 100)
    assert [(each.execution_id, each.seq) for each in followed] == [
        (first, 1),
        (first, 2),
        (second, 3),
        (first, 4),
    ]
    assert last.last_seq == 4 == await world.log.read_last_seq(first)
    assert [each.seq for each in await world.log.follow_shard(0, 2, 1)] == [3]


async def test_events_read_back_as_they_were_written(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(1)
    event = SignalReceived(at=7, name="go", request="r", payload={"a": [1, None, "x"]})
    await one.write(id_, make_start(id_), event)
    recorded = (await world.log.read_events(id_))[-1]
    assert recorded.event == event
    assert (recorded.shard, recorded.epoch) == (1, one.epochs[1])
    assert await world.log.read_events(id_, after=recorded.seq) == []
    assert len(await world.log.read_events(id_, limit=1)) == 1


async def test_an_owner_of_a_former_epoch_writes_nothing(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(2)
    await world.leases.release_shards(one.runtime_id, [2])
    other = await world.leases.register("other", None, 3_600_000_000)
    assert await world.leases.claim(other.runtime_id, 4) == [ClaimedShard(2, one.epochs[2] + 1)]
    healthy = execution(3)
    part = await one.part(id_, make_start(id_), effects=(Issue(command(id_)),))
    lost, applied = await one.append(part, await one.part(healthy, make_start(healthy)))
    assert lost == ShardLost(id_, 2)
    assert isinstance(applied, Appended)
    assert await world.log.read_events(id_) == []
    assert await world.queue.find_status(CommandId("c1")) is None


async def test_a_shard_that_is_not_in_the_epochs_given_is_refused(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(2)
    del one.epochs[2]
    assert await one.append(await one.part(id_, make_start(id_))) == [ShardLost(id_, 2)]


async def test_a_decision_from_a_state_that_is_not_the_last_is_refused(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.write(id_, make_start(id_))
    assert await one.append(await one.part(id_, signal_like("a"), after=0)) == [Known(id_)]
    assert await one.append(await one.part(id_, signal_like("a"), after=9)) == [Known(id_)]
    assert len(await world.log.read_events(id_)) == 1


async def test_the_same_batch_twice_is_applied_once(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    part = await one.part(id_, make_start(id_), effects=(Issue(command(id_)),))
    assert isinstance((await one.append(part))[0], Appended)
    assert await one.append(part) == [Known(id_)]


async def test_a_key_that_stands_in_the_log_is_named(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.write(id_, make_start(id_), signal_like("a"))
    (refused,) = await one.append(await one.part(id_, signal_like("b"), signal_like("a")))
    assert refused == Known(id_, signal_like("a").key)
    (refused,) = await one.append(await one.part(id_, signal_like("c"), signal_like("c")))
    assert refused == Known(id_, signal_like("c").key)
    other = execution(0, 1)
    await one.write(other, make_start(other), signal_like("a"))


async def test_keys_that_the_state_remembers_are_not_looked_up(world: PortWorld) -> None:
    """Their repeats are refused by `after`; the engine decides nothing twice from one state."""
    one, id_ = await owner(world), execution(0)
    await one.write(id_, make_start(id_), journal())
    part = await one.part(id_, journal(), after=0)
    assert await one.append(part) == [Known(id_)]
    assert isinstance((await one.append(await one.part(id_, journal())))[0], Appended)


async def test_a_bad_part_leaves_the_batch_whole_and_the_others_go_on(world: PortWorld) -> None:
    one, bad, good = await owner(world), execution(0, 0), execution(0, 1)
    await one.write(bad, make_start(bad))
    refused, applied = await one.append(
        await one.part(bad, signal_like("a"), effects=(Send(good, Pause(request="r")),), after=0),
        await one.part(good, make_start(good)),
    )
    assert refused == Known(bad)
    assert isinstance(applied, Appended)
    assert await messages(world, good) == []


async def test_a_report_is_taken_only_from_the_lease_it_names(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.issue(id_)
    held = LeaseKey(CommandId("c1"), 1)
    part = await one.part(id_, make_completed(), taken=(held,), effects=(Finish(CommandId("c1")),))
    assert await one.append(part) == [StaleAttempt(id_, held)]  # queued
    await world.queue.claim_commands(DEFAULT_TENANT, "w1", ("cpu",), 1, 1_000)
    other = LeaseKey(CommandId("c1"), 2)
    assert await one.append(await one.part(id_, taken=(other,))) == [StaleAttempt(id_, other)]
    assert isinstance((await one.append(part))[0], Appended)
    assert await world.queue.find_status(CommandId("c1")) is None
    late = await one.part(id_, journal(), taken=(held,))
    assert await one.append(late) == [StaleAttempt(id_, held)]


async def test_a_journal_entry_leaves_the_lease_as_it_is(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    await one.write(id_, journal(), taken=(LeaseKey(CommandId("c1"), 1),))
    assert await world.queue.find_status(CommandId("c1")) == ("leased", 1)


async def test_inbox_rows_and_timers_are_consumed_once(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await world.inbox.post_message(id_, Pause(request="r"))
    (row,) = await world.inbox.read_messages([0], 10)
    await one.write(id_, make_start(id_), inbox=(row.inbox_id,))
    assert await world.inbox.read_messages([0], 10) == []
    assert await one.append(await one.part(id_, signal_like("a"), inbox=(row.inbox_id,))) == [
        Known(id_)
    ]
    assert await one.append(await one.part(id_, signal_like("a"), timers=(TimerId("t"),))) == [
        Known(id_)
    ]


async def test_a_part_without_events_consumes_and_is_fenced_like_any_other(
    world: PortWorld,
) -> None:
    one, id_ = await owner(world), execution(0)
    await world.inbox.post_message(id_, Pause(request="r"))
    (row,) = await world.inbox.read_messages([0], 10)
    assert await one.append(await one.part(id_, inbox=(row.inbox_id,), after=3)) == [Known(id_)]
    assert (await one.write(id_, inbox=(row.inbox_id,))).last_seq == 0
    assert await world.inbox.read_messages([0], 10) == []


async def test_payloads_do_not_fit_into_events_and_nothing_of_the_batch_is_applied(
    world: PortWorld,
) -> None:
    one, id_, other = await owner(world), execution(0), execution(1)
    large = Envelope(status="ok", context={"rows": "x" * 9_000})
    in_result = CallDone(step="s", activation=ActivationId("a"), result=large)
    in_meta = SignalReceived(name="n", request="r", payload="x" * 17_000)
    for event in (in_result, in_meta):
        with pytest.raises(EventTooLarge):
            await one.append(
                await one.part(other, make_start(other)),
                await one.part(id_, make_start(id_), event),
            )
    assert await world.log.read_last_seq(other) == 0
    await one.write(id_, SignalReceived(name="n", request="r", payload="x" * 15_000))


async def test_an_event_with_rows_in_its_context_is_refused(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    rows = Envelope(status="ok", context={"rows": [{"a": 1}]})
    with pytest.raises(EventHasRows):
        await one.write(
            id_, make_start(id_), CallDone(step="s", activation=ActivationId("a"), result=rows)
        )
    assert await world.log.read_last_seq(id_) == 0


async def test_references_of_a_part_may_be_recorded_again(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    made = Reference(ref_id=RefId("1"), type="kv", uri=f"noetl://execution/{id_}/result/s/k")
    await one.write(id_, make_start(id_), refs=(StoredRef(reference=made, payload=b"1"),))
    await one.write(id_, signal_like("a"), refs=(StoredRef(reference=made, payload=b"1"),))
    assert [each.event.key for each in await world.log.read_events(id_)] == [
        make_start(id_).key,
        signal_like("a").key,
    ]
    assert await world.payloads.read_payload(DEFAULT_TENANT, made.ref_id, made.uri) == b"1"
