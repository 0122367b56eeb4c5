"""The worker protocol: the next exchange makes up for any lost reply."""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

import msgspec

from noetl.log.tables import BlobKey
from noetl.model.errors import OutcomeUnknown, StoreUnavailable
from noetl.model.exchange import LeaseKey
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, RefId
from noetl.model.messages import StoredRef
from noetl.model.reference import Reference
from tests.unit.server.cluster import (
    ClusterNode,
    ServerCluster,
    claim,
    exchange,
    list_statuses,
    make_lease_key,
    open_cluster,
    report_completed,
)


async def test_a_command_whose_reply_was_lost_is_sent_again_as_the_same_attempt() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        cluster.clock.time += 5_000_000
        assert (await exchange(node)).commands == (one,)
        assert (await exchange(node, holds=(one,))).commands == ()
        cluster.clock.time += 5_000_000  # it was sent with a full lease
        assert await cluster.stores.queue.expire_leases(10) == 0


async def test_a_command_being_reported_is_not_sent_again() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        node.stores.fail("append", StoreUnavailable("down"), done=False)
        reply = await exchange(node, report_completed(one))
        assert (list_statuses(reply.acks), reply.commands, reply.stop) == (["retry"], (), ())


async def test_what_is_sent_again_takes_a_free_place() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        await claim(node)
        await cluster.start_execution(node)
        assert len((await exchange(node, free=1)).commands) == 1


async def test_a_claim_with_an_unknown_outcome_is_made_up_for() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        node.stores.fail("claim_commands", OutcomeUnknown("lost"), done=True)
        assert (
            await exchange(node, free=1, wait=15)
        ).commands == ()  # it does not wait: the next one knows
        assert len((await exchange(node, free=1)).commands) == 1


async def test_acknowledgements_come_back_even_when_leases_cannot_be_renewed() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        await cluster.start_execution(node)
        two = await claim(node, "w2")
        node.stores.fail("renew_leases", StoreUnavailable("down"), done=False)
        reply = await exchange(node, report_completed(one), holds=(two,), worker="w2")
        assert (list_statuses(reply.acks), reply.renewed) == (["ok"], False)


async def test_a_worker_is_told_what_is_not_its_own_any_more() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        await cluster.stores.queue.end_leases("w1/1")
        assert (await exchange(node, holds=(one,))).stop == (make_lease_key(one),)
        assert (await exchange(node, holds=(one,), worker="w2")).stop == (
            LeaseKey(one.command_id, 1),
        )


async def test_a_waiting_worker_is_handed_the_command_that_a_start_leads_to() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        waiting = asyncio.create_task(exchange(node, free=1, wait=10))
        await asyncio.sleep(0.01)
        claims = node.stores.calls["claim_commands"]
        await cluster.start_execution(node)
        (one,) = (await waiting).commands
        assert one.step == "one"
        assert node.stores.calls["claim_commands"] - claims <= 1


async def leave_too_soon(
    cluster: ServerCluster, node: ClusterNode
) -> Callable[[], Awaitable[object]]:
    """A command is on its way to a worker, which has its reply before that is written. To be called: it is written."""
    written = node.stores.hold("append")
    first = asyncio.create_task(exchange(node, free=1, wait=0.05))
    await asyncio.sleep(0.01)
    begun = asyncio.create_task(cluster.start_execution(node))
    assert (await first).commands == ()

    async def write() -> None:
        written.set()
        await begun

    return write


async def test_what_is_handed_to_a_worker_that_has_its_reply_comes_with_what_it_waits_for_now() -> (
    None
):
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        write = await leave_too_soon(cluster, node)
        second = asyncio.create_task(exchange(node, free=1, wait=10, renew=False))
        await asyncio.sleep(0.01)
        await write()
        async with asyncio.timeout(1):
            assert [command.step for command in (await second).commands] == ["one"]


async def test_what_is_handed_to_a_worker_that_has_left_comes_with_its_next_exchange() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        write = await leave_too_soon(cluster, node)
        assert (await exchange(node, renew=False)).commands == ()
        await write()
        assert [command.step for command in (await exchange(node, renew=False)).commands] == ["one"]


async def test_a_waiting_worker_finds_what_another_server_issued() -> None:
    async with open_cluster() as cluster:
        issuing, other = await cluster.add_node("issuing"), await cluster.add_node("other")
        other.server.shards._epochs.clear()  # it owns nothing: it only serves workers
        waiting = asyncio.create_task(exchange(other, free=1, wait=10))
        await asyncio.sleep(0.01)
        await cluster.start_execution(issuing)
        assert len((await waiting).commands) == 1


async def test_a_worker_gets_no_more_than_it_has_room_for() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        waiting = asyncio.create_task(exchange(node, free=2, wait=10))
        await asyncio.sleep(0.01)
        for _ in range(4):
            await cluster.start_execution(node)
        reply = await waiting
        assert 1 <= len(reply.commands) <= 2
        assert len(await cluster.stores.queue.list_leased_commands(DEFAULT_TENANT, "w1/1")) <= 2


async def test_a_worker_that_began_anew_is_not_sent_what_it_had_begun_before() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        assert (await exchange(node, life="2")).commands == ()
        await node.drain()
        (again,) = (await exchange(node, free=1, life="2")).commands
        assert (again.command_id, again.attempt) == (one.command_id, 2)
        assert (await exchange(node, holds=(one,))).stop == (
            make_lease_key(one),
        )  # a late word of the life before


async def test_a_poll_that_finds_nothing_ends_in_time() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        reply = await exchange(node, free=1, wait=0.05)
        assert (reply.commands, reply.acks, reply.stop) == ((), (), ())


async def test_a_place_reserved_for_a_part_that_was_not_written_is_free_again() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        waiting = asyncio.create_task(exchange(node, free=1, wait=5, worker="w2"))
        await asyncio.sleep(0.01)
        node.stores.fail("append", StoreUnavailable("down"), done=False)
        assert list_statuses((await exchange(node, report_completed(one))).acks) == ["retry"]
        assert list_statuses((await exchange(node, report_completed(one))).acks) == ["ok"]
        (two,) = (await waiting).commands
        assert two.step == "two"


async def test_what_a_worker_had_spooled_is_recorded_before_its_earlier_leases_are_given_up() -> (
    None
):
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_, other = await cluster.start_execution(node), await cluster.start_execution(node)
        one, two = (await exchange(node, free=2)).commands
        reply = await exchange(node, report_completed(one), holds=(one,), life="2")
        assert list_statuses(reply.acks) == ["ok"]
        await node.drain()
        types = {each: await cluster.list_types(each) for each in (id_, other)}
        assert "command.reclaimed" not in types[one.execution_id]
        assert "command.reclaimed" in types[two.execution_id]


async def test_a_spool_that_takes_several_exchanges_is_heard_to_its_end() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        await cluster.start_execution(node)
        one, two = (await exchange(node, free=2)).commands
        assert list_statuses(
            (await exchange(node, report_completed(one), holds=(one, two), life="2")).acks
        ) == ["ok"]
        assert list_statuses(
            (await exchange(node, report_completed(two), holds=(two,), life="2")).acks
        ) == ["ok"]


async def test_earlier_leases_are_kept_while_what_was_spooled_cannot_be_recorded() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        node.stores.fail("append", StoreUnavailable("down"), done=False)
        assert list_statuses(
            (await exchange(node, report_completed(one), holds=(one,), life="2")).acks
        ) == ["retry"]
        assert list_statuses(
            (await exchange(node, report_completed(one), holds=(one,), life="2")).acks
        ) == ["ok"]


async def test_a_report_that_brings_a_reference_of_another_execution_is_refused() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_, other = await cluster.start_execution(node), await cluster.start_execution(node)
        one, two = (await exchange(node, free=2)).commands
        uris = [
            f"noetl://execution/{other if one.execution_id == id_ else id_}/result/one/k",
            "elsewhere",
        ]
        for uri in uris:
            brought = StoredRef(
                reference=Reference(ref_id=RefId("7"), type="kv", uri=uri), payload=b"1"
            )
            (ack,) = (
                await exchange(
                    node,
                    msgspec.structs.replace(report_completed(one), refs=(brought,)),
                    holds=(one, two),
                )
            ).acks
            assert (ack.status, ack.code) == ("refused", "FOREIGN_REFERENCE")
            assert uri in str(ack.message)
            assert BlobKey(RefId("7"), uri) not in cluster.database.blobs
        assert list_statuses(
            (await exchange(node, report_completed(one), report_completed(two))).acks
        ) == ["ok", "ok"]


# ---- leases are asked for now and then ---------------------------------------------------------------------------------


async def test_a_report_asks_nothing_about_leases() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        asked = node.stores.calls["list_leased_commands"], node.stores.calls["renew_leases"]
        reply = await exchange(node, report_completed(one), holds=(one,), free=1, renew=False)
        assert (list_statuses(reply.acks), len(reply.commands)) == (["ok"], 1)
        assert (
            node.stores.calls["list_leased_commands"],
            node.stores.calls["renew_leases"],
        ) == asked
        await exchange(node, holds=reply.commands)
        assert (node.stores.calls["list_leased_commands"], node.stores.calls["renew_leases"]) == (
            asked[0] + 1,
            asked[1] + 1,
        )


async def test_what_the_last_reply_brought_and_nobody_lists_is_sent_again_unasked() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        assert (await exchange(node, renew=False)).commands == (one,)
        assert (await exchange(node, holds=(one,), renew=False)).commands == ()


async def test_a_claim_with_an_unknown_outcome_is_made_up_for_unasked() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await exchange(node)
        await cluster.start_execution(node)
        node.stores.fail("claim_commands", OutcomeUnknown("lost"), done=True)
        assert (await exchange(node, free=1, wait=15, renew=False)).commands == ()
        assert len((await exchange(node, free=1, renew=False)).commands) == 1


async def test_what_was_handed_to_a_worker_that_had_left_is_sent_again_unasked() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await exchange(node)
        waiting = asyncio.create_task(exchange(node, free=1, wait=10, renew=False))
        await asyncio.sleep(0.01)
        waiting.cancel()
        beginning = asyncio.create_task(cluster.start_execution(node))
        await asyncio.wait((waiting, beginning))
        left = await exchange(node, renew=False)
        assert len(left.commands) == len(
            await cluster.stores.queue.list_leased_commands(DEFAULT_TENANT, "w1/1")
        )


async def test_a_server_that_does_not_know_the_worker_looks() -> None:
    async with open_cluster() as cluster:
        first = await cluster.add_node("first")
        await cluster.start_execution(first)
        one = await claim(first)
        second = await cluster.add_node("second")
        assert (await exchange(second, renew=False)).commands == (one,)


def make_log_part(execution_id: ExecutionId, part: int = 0) -> StoredRef:
    uri, payload = f"noetl://execution/{execution_id}/log/one/c-1-{part}", b"[]"
    reference = Reference(
        ref_id=RefId(str(900 + part)), type="kv", uri=uri, sha256=sha256(payload).hexdigest()
    )
    return StoredRef(reference=reference, payload=payload)


async def test_what_a_command_printed_is_stored_before_its_end_is_recorded() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        one, append = await claim(node), cluster.stores.log.append
        seen: list[int] = []

        async def append_and_note(batch: Any) -> Any:
            seen.append(len(await cluster.stores.step_logs.read_parts(id_, None, 0, 10)))
            return await append(batch)

        cluster.stores.log.append = append_and_note  # type: ignore[method-assign]
        reply = await exchange(node, report_completed(one), logs=(make_log_part(id_),))
        assert (list_statuses(reply.acks), reply.logged, seen) == (["ok"], True, [1])


async def test_a_report_is_recorded_whatever_becomes_of_the_log() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        one = await claim(node)
        node.stores.fail("put_parts", StoreUnavailable("down"), done=False)
        reply = await exchange(node, report_completed(one), logs=(make_log_part(id_),))
        assert (list_statuses(reply.acks), reply.logged) == (["ok"], False)
        node.stores.fail("put_parts", RuntimeError("a bug"), done=False)
        reply = await exchange(
            node, report_completed(await claim(node)), logs=(make_log_part(id_),)
        )
        assert (list_statuses(reply.acks), reply.logged) == (["ok"], True)


# ---- looks into the queue ------------------------------------------------------------------------------------------------


async def test_a_queue_that_was_empty_is_looked_into_when_there_is_a_reason() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        for _ in range(3):
            await exchange(node, free=1)
        assert node.stores.calls["claim_commands"] == 1
        await cluster.start_execution(node)
        assert len((await exchange(node, free=5)).commands) == 1
        assert node.stores.calls["claim_commands"] == 2
        await asyncio.sleep(1)  # without a hint, now and then
        await exchange(node, free=5)
        assert node.stores.calls["claim_commands"] == 3


async def test_what_one_worker_has_no_room_for_another_that_waits_is_told_of() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        for _ in range(3):
            await cluster.start_execution(node)
        waiting = asyncio.create_task(exchange(node, free=1, wait=10, worker="w2"))
        assert len((await exchange(node, free=1)).commands) == 1
        assert len((await waiting).commands) == 1
        assert len((await exchange(node, free=1, worker="w3")).commands) == 1


async def test_a_look_that_failed_is_made_again_at_once() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        node.stores.fail("claim_commands", StoreUnavailable("down"), done=False)
        assert (await exchange(node, free=1)).commands == ()
        assert len((await exchange(node, free=1)).commands) == 1
