"""Whole lives over the shell: children, cancelling, lost leases, timers, retries."""

import asyncio

import pytest

from noetl.bus.port import make_commands_subject
from noetl.model.envelope import make_failed_envelope
from noetl.model.errors import Conflict, Failure, InvalidInput, NotFound
from noetl.model.events import (
    ChildRequest,
    CommandCancelled,
    CommandFailed,
    CommandParked,
    CommandReturned,
)
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, RefId
from noetl.model.reference import Reference
from tests.unit.server.cluster import (
    CHAIN,
    SHARDS,
    ClusterNode,
    ServerCluster,
    claim,
    exchange,
    finish,
    list_statuses,
    make_report,
    open_cluster,
    report_completed,
)


async def park_command(
    cluster: ServerCluster, node: ClusterNode, request: ChildRequest
) -> ExecutionId:
    id_ = await cluster.start_execution(node)
    one = await claim(node)
    event = CommandParked(
        command_id=one.command_id, attempt=1, task="one", reason="child", child=request
    )
    assert list_statuses((await exchange(node, make_report(one, event))).acks) == ["ok"]
    await node.drain()
    return id_


async def test_a_child_runs_and_its_parent_goes_on() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.catalog.register("child", CHAIN)
        id_ = await park_command(cluster, node, ChildRequest(path="child", workload={"a": 2}))
        (child,) = set(cluster.database.pinned) - {id_}
        pinned = await cluster.stores.log.read_pinned(child)
        assert pinned is not None
        assert pinned.workload == {"a": 2}
        await finish(node, id_)
        assert (await cluster.list_types(child))[-1] == "playbook.completed"
        types = await cluster.list_types(id_)
        assert types[-1] == "playbook.completed"
        assert types.count("child.started") == types.count("child.ended") == 1


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (ChildRequest(path="nowhere"), "NOT_FOUND"),
        (ChildRequest(path="broken"), "PLAYBOOK_INVALID"),
    ],
)
async def test_a_child_that_cannot_be_started_has_failed(request_: ChildRequest, code: str) -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.catalog.register("broken", "kind: Nothing")
        id_ = await park_command(cluster, node, request_)
        recorded = [each.event for each in await cluster.stores.log.read_events(id_)]
        (end,) = [event for event in recorded if event.type == "child.ended"]
        assert end.result.error.code == code  # type: ignore[union-attr]


async def test_what_a_child_is_given_is_its_parents_own() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.catalog.register("child", CHAIN)
        other = await cluster.start_execution(node)
        await claim(node, "w2")
        theirs = Reference(
            ref_id=RefId("7"), type="kv", uri=f"noetl://execution/{other}/workload/s/k", bytes=8
        )
        await cluster.stores.payloads.put_payload(DEFAULT_TENANT, theirs, b'{"a": 1}')
        id_ = await park_command(cluster, node, ChildRequest(path="child", reference=theirs))
        (end,) = [
            each.event
            for each in await cluster.stores.log.read_events(id_)
            if each.event.type == "child.ended"
        ]
        assert "is its parent's" in end.result.error.message  # type: ignore[union-attr]


async def test_cancelling_stops_what_is_queued_and_tells_who_holds_the_rest() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        queued, running = await cluster.start_execution(node), await cluster.start_execution(node)
        one = await claim(node)
        await node.server.requests.cancel(one.execution_id, "r")
        other = queued if one.execution_id == running else running
        await node.server.requests.cancel(other, "r")
        await node.drain()
        assert (await cluster.list_types(other))[-1] == "execution.cancelled"
        reply = await exchange(node, holds=(one,))
        assert [each.command_id for each in reply.stop] == [one.command_id]
        stopped = CommandCancelled(command_id=one.command_id, attempt=1)
        assert list_statuses((await exchange(node, make_report(one, stopped))).acks) == ["ok"]
        assert (await cluster.list_types(one.execution_id))[-1] == "execution.cancelled"
        with pytest.raises(Conflict):
            await node.server.requests.cancel(other, "again")


async def test_a_command_whose_worker_is_gone_comes_back_until_it_is_dead() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        for attempt in range(1, 6):
            one = await claim(node, worker=f"w{attempt}")
            assert one.attempt == attempt
            cluster.clock.time += 6_000_000
            await node.claim_shards()
            assert (await node.server.reaper.run_once()).done == 1
            await node.drain()
        types = await cluster.list_types(id_)
        assert types.count("command.reclaimed") == 4
        assert types[-1] == "playbook.failed"
        assert list_statuses((await exchange(node, report_completed(one))).acks) != ["ok"]


async def test_a_command_that_is_handed_back_loses_no_lease_however_often() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        for attempt in range(1, 9):
            one = await claim(node, worker=f"w{attempt}")
            assert one.attempt == attempt
            back = make_report(one, CommandReturned(command_id=one.command_id, attempt=attempt))
            assert list_statuses((await exchange(node, back, worker=f"w{attempt}")).acks) == ["ok"]
        assert "command.reclaimed" not in await cluster.list_types(id_)
        await finish(node, id_)
        assert (await cluster.list_types(id_))[-1] == "playbook.completed"


async def test_a_command_that_is_handed_back_to_another_server_or_while_it_is_cancelled_is_settled() -> (
    None
):
    async with open_cluster() as cluster:
        owner, other = await cluster.add_node("owner"), await cluster.add_node("other")
        other.server.shards._epochs.clear()  # it owns nothing: it only serves workers
        id_ = await cluster.start_execution(owner)
        one = await claim(other)
        back = make_report(one, CommandReturned(command_id=one.command_id, attempt=1))
        assert list_statuses((await exchange(other, back)).acks) == ["ok"]
        await owner.drain()
        one = await claim(other)
        assert one.attempt == 2
        await owner.server.requests.cancel(id_, "r")
        await owner.drain()
        back = make_report(one, CommandReturned(command_id=one.command_id, attempt=2))
        assert list_statuses((await exchange(owner, back)).acks) == ["ok"]
        await owner.drain()
        assert (await cluster.list_types(id_))[-1] == "execution.cancelled"


async def test_an_execution_that_runs_too_long_is_cancelled_by_its_timer() -> None:
    timed = CHAIN.replace("workload: {a: 1}", "executor: {spec: {timeout: 1h}}\nworkload: {a: 1}")
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node, "timed", timed)
        await node.drain()
        assert "timer.fired" not in await cluster.list_types(id_)
        cluster.clock.time += 3_601_000_000
        await node.claim_shards()
        await node.drain()
        types = await cluster.list_types(id_)
        assert "timer.fired" in types
        assert types[-1] == "playbook.failed"


async def test_a_retry_runs_only_what_had_not_finished() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node, payload={"a": 5})
        await exchange(node, report_completed(await claim(node)))
        two = await claim(node)
        with pytest.raises(Conflict):
            await node.server.requests.retry(id_, "r")
        result = make_failed_envelope(Failure(code="E", message="no"))
        await exchange(
            node,
            make_report(two, CommandFailed(command_id=two.command_id, attempt=1, result=result)),
        )
        assert (await cluster.list_types(id_))[-1] == "playbook.failed"
        again = await node.server.requests.retry(id_, "r")
        assert await node.server.requests.retry(id_, "r") == again
        await node.drain()
        command = await claim(node)
        assert (command.execution_id, command.step) == (again, "two")
        assert command.scope.workload.get("a", 5) == 5
        await exchange(node, report_completed(command))
        assert (await cluster.list_types(again))[-1] == "playbook.completed"
        fresh = await node.server.requests.rerun(id_, "r")
        await node.drain()
        assert (await claim(node)).step == "one"
        assert fresh != again


NO_ITEMS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: no_items}
workload: {items: []}
workflow:
  - step: each
    loop: {in: "{{ workload.items }}"}
    tool: {kind: python, code: "pass"}
"""


@pytest.mark.parametrize(("playbook", "mentions_items"), [(CHAIN, False), (NO_ITEMS, True)])
async def test_a_refused_retry_mentions_items_only_of_a_playbook_with_a_loop(
    playbook: str, mentions_items: bool
) -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node, "ended", playbook)
        await finish(node, id_)
        with pytest.raises(Conflict, match="nothing is left to run") as refused:
            await node.server.requests.retry(id_, "r")
        assert ("items" in str(refused.value)) == mentions_items
        assert refused.value.hint == "rerun it"


async def test_only_so_many_executions_of_a_playbook_run_at_once() -> None:
    limited = CHAIN.replace(
        "workload: {a: 1}", "executor: {spec: {max_concurrent: 1}}\nworkload: {a: 1}"
    )
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        first = await cluster.start_execution(node, "limited", limited)
        second = await cluster.start_execution(node, "limited", limited)
        assert "workflow.initialized" in await cluster.list_types(first)
        assert "workflow.initialized" not in await cluster.list_types(second)
        await finish(node, first)
        await finish(node, second)
        assert (await cluster.list_types(second))[-1] == "playbook.completed"


async def test_requests_that_cannot_be_honoured_say_so_and_change_nothing() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        requests = node.server.requests
        with pytest.raises(NotFound):
            await requests.start("nowhere")
        with pytest.raises(NotFound):
            await requests.start(content="0")
        with pytest.raises(NotFound):
            await requests.cancel(ExecutionId("77"), "r")
        with pytest.raises(InvalidInput):
            await requests.start()
        await cluster.catalog.register("broken", "kind: Nothing")
        with pytest.raises(InvalidInput):
            await requests.start("broken")
        id_ = await cluster.start_execution(node)
        with pytest.raises(InvalidInput):
            await requests.signal(id_, "go", "r", "x" * 10_000)
        assert await cluster.stores.inbox.read_messages(list(range(SHARDS)), 10) == []


async def test_a_start_key_starts_once_whoever_asks() -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.add_node("one"), await cluster.add_node("two")
        await cluster.catalog.register("chain", CHAIN)
        first = await one.server.requests.start("chain", start_key="k", payload={"a": 1})
        assert await two.server.requests.start("chain", start_key="k", payload={"a": 2}) == first


async def test_servers_hear_of_a_command_that_is_queued_again() -> None:
    """A worker that waits for work waits at one of them."""
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        hints = cluster.bus.subscribe(make_commands_subject(one.tenant, one.pool))
        await exchange(
            node, make_report(one, CommandReturned(command_id=one.command_id, attempt=1))
        )
        async with asyncio.timeout(1):
            assert await anext(hints) == make_commands_subject(one.tenant, one.pool)
