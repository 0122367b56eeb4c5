"""Many writers at once, owners that come and go, and a database that is killed: nothing is missed, doubled or lost."""

import asyncio
import os
import signal
from collections import defaultdict
from pathlib import Path
from random import Random

import pytest

from noetl.embedded import EmbeddedPostgres
from noetl.leases.postgres import LeasesPostgres
from noetl.log.events.port import AppendBatch, Appended, Known, RecordedEvent, ShardLost
from noetl.model.errors import Unavailable
from noetl.model.events import SignalReceived
from noetl.model.exchange import LEASE_MICROS
from noetl.model.ids import ExecutionId, shard_of
from noetl.model.messages import Pause
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import Database, connect
from tests.integration.log.conftest import HOUR, SHARDS, Store, store
from tests.waiting import wait_until

WRITERS = 16


def signal_event(name: str) -> SignalReceived:
    return SignalReceived(name="n", request=name)


async def follow(here: Store, shard: int, until: asyncio.Event) -> list[RecordedEvent]:
    """A reader that keeps a position and never looks back."""
    seen: list[RecordedEvent] = []
    while True:
        last_look = until.is_set()
        page = await here.stores.log.follow_shard(shard, seen[-1].seq if seen else 0, 7)
        seen += page
        if not page and last_look:
            return seen
        if not page:
            await asyncio.sleep(0)


def assert_gapless(seen: list[RecordedEvent]) -> None:
    assert [each.seq for each in seen] == list(range(1, len(seen) + 1))
    keys = [(each.execution_id, each.event.key) for each in seen]
    assert len(keys) == len(set(keys))
    epochs = [each.epoch for each in seen]
    assert epochs == sorted(epochs), "an event of an owner after one of its successor"


# Between the number that an event gets and the commit that shows it.
HELD_BACK = """
create function hold_back() returns trigger language plpgsql as $$
begin perform pg_sleep(random() * 0.004 * (random() < 0.3)::int); return null; end $$;
create constraint trigger hold_back after insert on noetl.event_part deferrable initially deferred
    for each row execute function hold_back();
"""


async def test_readers_by_shard_and_sequence_miss_nothing(migrated: str) -> None:
    """Sixteen writers of overlapping batches; what each wrote is held back at random while the others go on."""
    async with store(migrated, connections=WRITERS) as here:
        async with here.database.main.open_write_transaction() as session:
            await session.execute(HELD_BACK)
        await here.claim_shards()
        until = asyncio.Event()
        readers = [asyncio.create_task(follow(here, shard, until)) for shard in range(SHARDS)]
        acked: set[tuple[ExecutionId, str]] = set()

        async def write(writer: int) -> None:
            random = Random(writer)
            runs = [ExecutionId(str(1000 * (writer + 1) + number)) for number in range(6)]
            last = dict.fromkeys(runs, 0)
            for number in range(12):
                chosen = random.sample(runs, random.randrange(1, 5))
                random.shuffle(chosen)
                parts = [
                    here.part(
                        run,
                        last[run],
                        *[
                            signal_event(f"{number}.{each}")
                            for each in range(random.randrange(1, 4))
                        ],
                    )
                    for run in chosen
                ]
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
                outcomes = await here.append(*parts)
                for part, outcome in zip(parts, outcomes, strict=True):
                    assert isinstance(outcome, Appended)
                    last[part.execution_id] = outcome.last_seq
                    acked.update((part.execution_id, event.key) for event in part.events)

        await asyncio.gather(*[write(writer) for writer in range(WRITERS)])
        until.set()
        seen = await asyncio.gather(*readers)
        for each in seen:
            assert_gapless(each)
        assert {(each.execution_id, each.event.key) for shard in seen for each in shard} == acked


async def test_a_transaction_that_waits_holds_back_what_comes_after_it(migrated: str) -> None:
    """The number is given at commit, not before: a later writer of the shard waits, and a reader never sees it first."""
    async with store(migrated) as here:
        await here.claim_shards()
        slow = await connect(migrated)
        transaction = slow.transaction()
        await transaction.start()
        await slow.execute("select from noetl.execution_shard where shard_id = 0 for no key update")
        id_ = next(ExecutionId(str(n)) for n in range(1, 99) if shard_of(str(n), SHARDS) == 0)
        other = next(ExecutionId(str(n)) for n in range(1, 99) if shard_of(str(n), SHARDS) == 1)
        waits = asyncio.create_task(here.write(id_, signal_event("a")))
        await here.write(other, signal_event("b"))  # another shard does not wait
        assert not waits.done()
        assert await here.stores.log.follow_shard(0, 0, 10) == []
        await transaction.commit()
        assert (await waits).last_seq == 1
        await slow.close()


async def test_a_former_owner_never_writes_again(migrated: str) -> None:
    """Two servers take every shard from each other again and again while both write all the time."""
    async with store(migrated) as here:
        stores, rounds = here.stores, 60
        acked: dict[int, list[tuple[int, int]]] = defaultdict(list)
        done = asyncio.Event()
        stolen: list[int] = []

        async def serve(name: int) -> None:
            leases, random = LeasesPostgres(here.database), Random(name)
            number = 0
            while not done.is_set():
                runtime = await leases.register(f"s{name}", None, HOUR)
                async with (
                    here.database.main.open_write_transaction() as session
                ):  # the other one seems dead, and does not know it
                    await session.execute(
                        "update noetl.runtime set leased_until = now() where runtime_id <> $1",
                        runtime.runtime_id,
                    )
                epochs = {
                    each.shard: each.epoch
                    for each in await leases.claim(runtime.runtime_id, SHARDS)
                }
                stolen.append(len(epochs))
                if len(stolen) >= rounds:
                    done.set()
                lost = 0
                while lost < SHARDS and not done.is_set():
                    number += 1
                    runs = [ExecutionId(str(random.randrange(1, 40))) for _ in range(3)]
                    parts = []
                    for run in dict.fromkeys(runs):
                        parts.append(
                            here.part(
                                run,
                                await stores.log.read_last_seq(run),
                                signal_event(f"{name}.{number}"),
                            )
                        )
                    outcomes = await stores.log.append(
                        AppendBatch(epochs=epochs, parts=tuple(parts), lease=LEASE_MICROS)
                    )
                    for part, outcome in zip(parts, outcomes, strict=True):
                        if isinstance(outcome, Appended):
                            acked[part.shard].append((outcome.last_seq, epochs[part.shard]))
                    lost += sum(isinstance(outcome, ShardLost) for outcome in outcomes)
            await leases.close()

        await asyncio.gather(serve(1), serve(2))
        for shard in range(SHARDS):
            seen = await stores.log.follow_shard(shard, 0, 100_000)
            assert_gapless(seen)
            assert sorted(acked[shard]) == [(each.seq, each.epoch) for each in seen]
        assert sum(stolen) >= rounds


async def enough(found: set[tuple[str, str]], wanted: int) -> bool:
    return len(found) >= wanted


def postmaster(embedded: EmbeddedPostgres) -> int:
    return int((embedded.cluster.data / "postmaster.pid").read_text().split()[0])


async def test_what_was_acknowledged_survives_a_database_that_is_killed(tmp_path: Path) -> None:
    """Postgres dies by -9 while writers write; they repeat what was unknown. Nothing is missing, nothing is there twice."""
    embedded = EmbeddedPostgres(tmp_path / "home")
    dsn = (await embedded.ensure()).control
    try:
        connection = await connect(dsn)
        await migrate(connection, shards=SHARDS)
        await connection.close()
        async with store(dsn, connections=6) as here:
            await here.claim_shards()
            acked: set[tuple[str, str]] = set()
            posted: set[tuple[str, str]] = set()
            trouble: set[str] = set()
            killed = asyncio.Event()

            async def write(writer: int) -> None:
                run, number = ExecutionId(str(100 + writer)), 0
                while not killed.is_set() or number % 5:
                    event = signal_event(str(number))
                    try:
                        outcome = (
                            await here.append(
                                here.part(run, await here.stores.log.read_last_seq(run), event)
                            )
                        )[0]
                        await here.stores.inbox.post_message(run, Pause(request=str(number)))
                    except Unavailable as error:
                        trouble.add(error.code)
                        await asyncio.sleep(0)
                        continue  # the same again: the keys absorb it
                    assert isinstance(outcome, Appended) or outcome == Known(run, event.key), (
                        outcome
                    )
                    acked.add((run, event.key))
                    posted.add((run, f"pause:{number}"))
                    number += 1

            writers = [asyncio.create_task(write(writer)) for writer in range(4)]
            for _ in range(3):
                before = len(acked)
                await wait_until(lambda before=before: enough(acked, before + 40), True)
                os.kill(postmaster(embedded), signal.SIGKILL)
                assert (await embedded.ensure()).control == dsn
            killed.set()
            await asyncio.gather(*writers)

            stored: set[tuple[str, str]] = set()
            for shard in range(SHARDS):
                seen = await here.stores.log.follow_shard(shard, 0, 1_000_000)
                assert_gapless(seen)
                stored |= {(each.execution_id, each.event.key) for each in seen}
            assert acked <= stored
            inbox = {
                (row.execution_id, row.message.key)
                for row in await here.stores.inbox.read_messages(list(range(SHARDS)), 1_000_000)
            }
            assert posted <= inbox
            assert trouble & {"STORE_UNAVAILABLE", "OUTCOME_UNKNOWN"}
    finally:
        await embedded.stop()


async def test_a_database_that_is_not_there_says_so() -> None:
    with pytest.raises(Unavailable) as refused:
        async with Database("postgresql://noetl@127.0.0.1:1/none"):
            pass
    assert refused.value.code == "STORE_UNAVAILABLE"


async def test_a_broken_connection_means_unknown_for_a_write_and_unavailable_for_a_read(
    migrated: str,
) -> None:
    async with store(migrated, connections=1) as here:
        await here.claim_shards()
        other = await connect(migrated)
        kill = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and query like $1"
        holder = other.transaction()
        await holder.start()
        await other.execute("select from noetl.execution_shard for update")
        waits = asyncio.create_task(here.write(ExecutionId("1"), signal_event("a")))
        await wait_until(
            lambda: other.fetchval("select exists (select from pg_locks where not granted)"), True
        )
        await other.fetch(kill, "%noetl.append%")
        with pytest.raises(Unavailable) as unknown:
            await waits
        assert unknown.value.code == "OUTCOME_UNKNOWN"
        await holder.rollback()
        assert (
            await here.write(ExecutionId("1"), signal_event("a"))
        ).last_seq == 1  # a new connection
        await other.close()
