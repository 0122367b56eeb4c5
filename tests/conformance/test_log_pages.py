"""Reading the log of one execution backwards, by groups of rare events, and counting its events."""

from noetl.model.envelope import Envelope
from noetl.model.errors import Failure
from noetl.model.event_groups import GROUP_BITS
from noetl.model.events import Collection, CommandFailed, Event, LoopStarted, StepEnter
from noetl.model.ids import ActivationId, CommandId
from tests.conformance.conftest import PortWorld
from tests.conformance.shard_owner import ShardOwner, execution, make_end, make_start, owner

ONE = execution(0)
OTHER = execution(0, 1)


def enter(number: int) -> Event:
    return StepEnter(step="s", activation=ActivationId(f"a{number}"), run=number, cause="start")


def failed(number: int) -> Event:
    error = Envelope(status="error", error=Failure(code="BROKEN", message="broken"))
    return CommandFailed(command_id=CommandId(f"c{number}"), attempt=1, result=error, step="s")


def loop(number: int) -> Event:
    return LoopStarted(
        step="s",
        activation=ActivationId(f"a{number}"),
        mode="parallel",
        collection=Collection(kind="inline"),
        window=1,
    )


async def write_log(shard: ShardOwner) -> list[Event]:
    """Four appends with appends of another execution between them."""
    appends: list[tuple[Event, ...]] = [
        (make_start(ONE), enter(1)),
        (enter(2), failed(2), enter(3)),
        (enter(4), loop(4)),
        (enter(5), failed(5)),
        (make_end(),),
    ]
    for number, events in enumerate(appends):
        await shard.write(ONE, *events)
        begins = (make_start(OTHER),) if number == 0 else (enter(number),)
        await shard.write(OTHER, *begins)
    return [event for events in appends for event in events]


async def test_events_are_read_backwards(world: PortWorld) -> None:
    events = await write_log(await owner(world))
    recorded = await world.log.read_events(ONE)
    assert [each.event for each in recorded] == events
    for number, each in enumerate(recorded):
        for limit in (1, 2, 3, 100):
            page = await world.log.read_events_before(ONE, each.seq, limit)
            assert page == recorded[max(number - limit, 0) : number]
    assert await world.log.read_events_before(ONE, recorded[-1].seq + 1, 2) == recorded[-2:]
    assert await world.log.read_events_before(execution(1), 100, 2) == []


async def test_events_of_a_range_are_read(world: PortWorld) -> None:
    await write_log(await owner(world))
    recorded = await world.log.read_events(ONE)
    seqs = [each.seq for each in recorded]
    for after in (0, *seqs):
        for upto in (*seqs, seqs[-1] + 5):
            expected = [each for each in recorded if after < each.seq <= upto]
            for limit in (1, 3, 100):
                found = await world.log.read_events_between(ONE, after, upto, limit)
                assert found == expected[:limit], (after, upto, limit)


async def test_events_of_a_range_are_counted(world: PortWorld) -> None:
    await write_log(await owner(world))
    seqs = [each.seq for each in await world.log.read_events(ONE)]
    ranges = [(after, upto) for after in (0, *seqs) for upto in (0, *seqs, seqs[-1] + 5)]
    expected = [len([seq for seq in seqs if after < seq <= upto]) for after, upto in ranges]
    assert await world.log.count_events(ONE, ranges) == expected
    assert await world.log.count_events(ONE, []) == []


async def read_group(world: PortWorld, group: str, **window: int) -> list[str]:
    """Keys of the events that really are of a group, as a caller filters them."""
    wanted = {"failures": CommandFailed, "loops": LoopStarted}[group]
    found = await world.log.read_grouped_events(ONE, GROUP_BITS[group], limit=100, **window)
    assert found == sorted(found, key=lambda each: each.seq)
    return [each.event.key for each in found if isinstance(each.event, wanted)]


async def test_events_of_a_group_are_found(world: PortWorld) -> None:
    await write_log(await owner(world))
    recorded = await world.log.read_events(ONE)
    by_key = {each.event.key: each.seq for each in recorded}
    first, second = failed(2).key, failed(5).key
    assert await read_group(world, "failures") == [first, second]
    assert await read_group(world, "failures", after=by_key[first]) == [second]
    assert await read_group(world, "failures", before=by_key[second]) == [first]
    assert await read_group(world, "failures", before=by_key[first]) == []
    assert await read_group(world, "loops") == [loop(4).key]


async def test_a_page_of_a_group_goes_on_where_the_last_one_ended(world: PortWorld) -> None:
    await write_log(await owner(world))
    bits = GROUP_BITS["failures"]
    first = await world.log.read_grouped_events(ONE, bits, limit=1)
    assert failed(2).key in {each.event.key for each in first}
    assert failed(5).key not in {each.event.key for each in first}
    second = await world.log.read_grouped_events(ONE, bits, after=first[-1].seq, limit=1)
    assert failed(5).key in {each.event.key for each in second}
    newest = await world.log.read_grouped_events(ONE, bits, before=1_000, limit=1)
    assert failed(5).key in {each.event.key for each in newest}
    assert failed(2).key not in {each.event.key for each in newest}


async def test_start_and_end_are_candidates_of_a_group(world: PortWorld) -> None:
    await write_log(await owner(world))
    found = await world.log.read_grouped_events(ONE, GROUP_BITS["life"], limit=100)
    keys = [each.event.key for each in found]
    assert keys[0] == make_start(ONE).key
    assert keys[-1] == make_end().key
