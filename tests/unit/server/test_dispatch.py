"""The shell: what is written when, what is answered when, and what survives failures between."""

import asyncio
from typing import Any

import pytest

from noetl.engine import machine
from noetl.log.events.port import AppendBatch, ExecutionPart
from noetl.model.envelope import Envelope
from noetl.model.errors import OutcomeUnknown, StoreUnavailable
from noetl.model.events import CallDone, CommandCancelled, TaskDone
from noetl.model.ids import DEFAULT_TENANT, ActivationId
from noetl.model.messages import Signal
from noetl.server.dispatch import dispatcher as dispatch
from tests.unit.server.cluster import (
    CHAIN,
    OK,
    SHARDS,
    claim,
    exchange,
    finish,
    list_statuses,
    make_report,
    open_cluster,
    report_completed,
)


async def test_an_execution_runs_to_its_end() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        await finish(node, id_)
        assert (await cluster.list_types(id_))[-1] == "playbook.completed"
        assert await cluster.stores.inbox.read_messages(list(range(SHARDS)), 10) == []


async def test_the_next_command_comes_back_with_the_acknowledgement_of_the_last_without_a_claim() -> (
    None
):
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        appends, claims = node.stores.calls["append"], node.stores.calls["claim_commands"]
        reply = await exchange(node, report_completed(one), free=1)
        assert list_statuses(reply.acks) == ["ok"]
        assert [command.step for command in reply.commands] == ["two"]
        assert (
            node.stores.calls["append"] - appends,
            node.stores.calls["claim_commands"] - claims,
        ) == (1, 0)
        two = reply.commands[0]
        assert await cluster.stores.queue.find_status(two.command_id) == ("leased", 1)


async def test_whatever_arrived_while_the_last_commit_was_in_flight_is_one_batch() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        commands = []
        for number in range(20):
            await cluster.start_execution(node)
            commands.append(await claim(node, f"w{number}"))
        before = node.stores.calls["append"]
        await asyncio.gather(*(exchange(node, report_completed(command)) for command in commands))
        assert node.stores.calls["append"] - before <= 2


async def test_reports_of_one_execution_in_one_batch_are_decided_on_top_of_each_other() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        one = await claim(node)
        journal = TaskDone(
            command_id=one.command_id, attempt=1, task="one", run=1, goto=1, result=OK
        )
        reply = await exchange(node, make_report(one, journal), report_completed(one))
        assert list_statuses(reply.acks) == ["ok", "ok"]
        types = await cluster.list_types(id_)
        assert types.index("task.done") < types.index("command.completed")


async def test_a_report_given_twice_is_recorded_once() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        one = await claim(node)
        both = await asyncio.gather(
            exchange(node, report_completed(one)), exchange(node, report_completed(one))
        )
        await exchange(node, report_completed(one))
        assert [list_statuses(reply.acks) for reply in both][0] == ["ok"]
        assert (await cluster.list_types(id_)).count("command.completed") == 1


async def test_a_stale_report_is_refused_and_the_others_of_its_batch_are_recorded() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        lost = await claim(node)
        await cluster.start_execution(node)
        good = await claim(node, "w2")
        # lost in the store, unknown to the server's state: the store's answer decides
        cluster.database.lose(cluster.database.commands[lost.command_id])
        replies = await asyncio.gather(
            exchange(node, report_completed(lost)), exchange(node, report_completed(good))
        )
        assert [list_statuses(reply.acks) for reply in replies] == [["stale"], ["ok"]]


@pytest.mark.parametrize("done", [True, False])
async def test_after_an_unknown_outcome_the_worker_repeats_and_the_report_is_recorded_once(
    done: bool,
) -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        one = await claim(node)
        error: Exception = OutcomeUnknown("reply lost") if done else StoreUnavailable("down")
        node.stores.fail("append", error, done=done)
        assert list_statuses((await exchange(node, report_completed(one))).acks) == ["retry"]
        repeated = await exchange(node, report_completed(one))
        assert list_statuses(repeated.acks) == (["stale"] if done else ["ok"])
        assert (await cluster.list_types(id_)).count("command.completed") == 1
        await finish(node, id_)
        assert (await cluster.list_types(id_))[-1] == "playbook.completed"


async def test_why_nothing_can_be_written_is_known_until_something_is() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        assert node.server.dispatcher.get_write_error() is None
        full = StoreUnavailable("no space left")
        node.stores.fail("append", full, done=False)
        await exchange(node, report_completed(one))
        assert node.server.dispatcher.get_write_error() is full
        await exchange(node, report_completed(one))
        assert node.server.dispatcher.get_write_error() is None


async def test_a_command_handed_off_with_an_unknown_outcome_is_sent_all_the_same() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        node.stores.fail("append", OutcomeUnknown("reply lost"), done=True)
        reply = await exchange(node, report_completed(one), free=1)
        assert list_statuses(reply.acks) == ["retry"]
        (two,) = reply.commands  # it is leased to this worker, which does not list it
        assert (two.step, two.attempt) == ("two", 1)
        assert (await exchange(node)).commands == (two,)


async def test_a_report_to_a_server_that_lost_the_shard_is_accepted_for_the_new_owner() -> None:
    async with open_cluster() as cluster:
        old = await cluster.add_node("old")
        id_ = await cluster.start_execution(old)
        one = await claim(old)
        cluster.clock.time += 7_000_000
        cluster.database.leased[one.command_id].lease_until += 60_000_000
        new = await cluster.add_node("new")
        assert new.server.shards.list_owned() == list(range(SHARDS))
        assert list_statuses((await exchange(old, report_completed(one))).acks) == ["ok"]
        assert not old.server.shards.owns(old.server.shards.find_shard(id_))
        assert "command.completed" not in await cluster.list_types(id_)
        await new.drain()
        await finish(new, id_)
        assert (await cluster.list_types(id_))[-1] == "playbook.completed"


async def test_a_report_waits_for_one_that_another_server_accepted_before_it() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        one = await claim(node)
        journal = TaskDone(
            command_id=one.command_id, attempt=1, task="one", run=1, goto=1, result=OK
        )
        assert await cluster.stores.inbox.accept_report(DEFAULT_TENANT, make_report(one, journal))
        assert list_statuses((await exchange(node, report_completed(one))).acks) == ["retry"]
        await node.drain()
        assert list_statuses((await exchange(node, report_completed(one))).acks) == ["ok"]
        types = await cluster.list_types(id_)
        assert types.index("task.done") < types.index("command.completed")


async def test_an_accepted_report_that_says_nothing_true_loses_its_attempt_not_its_command() -> (
    None
):
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        one = await claim(node)
        unasked = CommandCancelled(command_id=one.command_id, attempt=1)  # nobody told it to stop
        assert await cluster.stores.inbox.accept_report(DEFAULT_TENANT, make_report(one, unasked))
        await node.drain()
        again = await claim(node)
        assert (again.command_id, again.attempt) == (one.command_id, 2)


async def test_a_message_whose_event_is_in_the_log_already_is_consumed_without_one() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        signal = Signal(name="go", request="r")
        await cluster.stores.inbox.post_message(id_, signal)
        await node.drain()
        cluster.database.post(id_, signal)  # a race that the check of `post` does not see
        await node.drain()
        assert (await cluster.list_types(id_)).count("signal.received") == 1
        assert await cluster.stores.inbox.read_messages(list(range(SHARDS)), 10) == []
        await finish(node, id_)
        assert (await cluster.list_types(id_))[-1] == "playbook.completed"


async def test_a_message_for_an_execution_that_does_not_exist_is_dropped() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.stores.inbox.post_message("12345", Signal(name="go", request="r"))  # type: ignore[arg-type]
        await node.drain()
        assert await cluster.stores.inbox.read_messages(list(range(SHARDS)), 10) == []


async def test_dropping_every_state_changes_nothing() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        one = await claim(node)
        node.server.states.forget_all(node.server.states.list_cached())
        assert list_statuses((await exchange(node, report_completed(one))).acks) == ["ok"]
        node.server.states.forget_all(node.server.states.list_cached())
        await finish(node, id_)
        assert (await cluster.list_types(id_))[-1] == "playbook.completed"


# ---- quarantine --------------------------------------------------------------------------------------------------------


def poison(monkeypatch: pytest.MonkeyPatch, execution_id: str) -> None:
    real = machine.advance

    def advance(fixed: Any, state: Any, *given: Any) -> Any:
        if state.execution_id == execution_id and given[0].type == "command.completed":
            raise ZeroDivisionError("a bug")
        return real(fixed, state, *given)

    monkeypatch.setattr(dispatch, "advance", advance)


async def test_a_decision_that_raises_sets_its_execution_aside_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        bad = await cluster.start_execution(node)
        one = await claim(node)
        good = await cluster.start_execution(node)
        other = await claim(node, "w2")
        poison(monkeypatch, bad)
        replies = await asyncio.gather(
            exchange(node, report_completed(one)), exchange(node, report_completed(other))
        )
        assert [list_statuses(reply.acks) for reply in replies] == [["ok"], ["ok"]]
        assert (await cluster.list_types(bad))[-1] == "execution.quarantined"
        await node.drain()
        await finish(node, good)
        assert (await cluster.list_types(good))[-1] == "playbook.completed"
        assert (await cluster.list_types(bad))[-1] == "execution.quarantined"


async def test_a_released_execution_goes_on_with_what_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        bad = await cluster.start_execution(node)
        one = await claim(node)
        with monkeypatch.context() as patched:
            poison(patched, bad)
            await exchange(node, report_completed(one))
            await node.server.requests.release(bad, "first")
            await node.drain()  # the bug is still there
            await node.server.requests.signal(bad, "go", "s")
            await node.drain()
        assert (await cluster.list_types(bad)).count("execution.quarantined") == 2
        await node.server.requests.release(bad, "second")
        await node.drain()
        await finish(node, bad)
        types = await cluster.list_types(bad)
        assert types[-1] == "playbook.completed"
        assert types.count("command.completed") == 2


async def test_a_quarantined_execution_stays_aside_for_the_next_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_cluster() as cluster:
        old = await cluster.add_node("old")
        bad = await cluster.start_execution(old)
        one = await claim(old)
        with monkeypatch.context() as patched:
            poison(patched, bad)
            await exchange(old, report_completed(one))
        cluster.clock.time += 7_000_000
        new = await cluster.add_node("new")
        await new.drain()
        assert (await cluster.list_types(bad))[-1] == "execution.quarantined"
        await new.server.requests.release(bad, "r")
        await new.drain()
        await finish(new, bad)
        assert (await cluster.list_types(bad))[-1] == "playbook.completed"


async def test_an_event_that_does_not_fold_sets_its_execution_aside() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        stray = CallDone(step="nowhere", activation=ActivationId("nothing"), result=OK)
        part = ExecutionPart(
            execution_id=id_,
            shard=node.server.shards.find_shard(id_),
            tenant=DEFAULT_TENANT,
            after=await cluster.stores.log.read_last_seq(id_),
            events=(stray,),
        )
        await cluster.stores.log.append(
            AppendBatch(epochs=node.server.shards.copy_epochs(), parts=(part,), lease=1)
        )
        await node.server.requests.signal(id_, "go", "s")
        other = await cluster.start_execution(node)
        await node.drain()
        await node.drain()
        assert (await cluster.list_types(id_))[-1] == "execution.quarantined"
        assert (await cluster.list_types(id_)).count("execution.quarantined") == 1
        await finish(node, other)
        assert (await cluster.list_types(other))[-1] == "playbook.completed"
        await node.project()
        row = await cluster.stores.projections.read_projection(id_)
        assert row is not None
        assert row.status == "quarantined"


async def test_an_event_too_large_for_the_log_sets_its_execution_aside() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        one = await claim(node)
        large = Envelope(status="ok", context={"x": "y" * 9_000})
        event = TaskDone(
            command_id=one.command_id, attempt=1, task="one", run=1, goto=1, result=large
        )
        assert list_statuses((await exchange(node, make_report(one, event))).acks) == ["ok"]
        assert (await cluster.list_types(id_))[-1] == "execution.quarantined"


async def test_a_timer_of_a_quarantined_execution_waits_in_its_inbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed = CHAIN.replace("workload: {a: 1}", "executor: {spec: {timeout: 1h}}\nworkload: {a: 1}")
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        bad = await cluster.start_execution(node, "timed", timed)
        one = await claim(node)
        with monkeypatch.context() as patched:
            poison(patched, bad)
            await exchange(node, report_completed(one))
        cluster.clock.time += 3_700_000_000
        await node.claim_shards()
        await node.drain()
        assert await cluster.stores.inbox.read_due_timers(list(range(SHARDS)), 10) == []
        await node.server.requests.release(bad, "r")
        await node.drain()
        assert "timer.fired" in await cluster.list_types(bad)


async def test_a_part_that_the_store_refuses_as_such_takes_out_only_its_execution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        bad = await cluster.start_execution(node)
        one = await claim(node)
        good = await cluster.start_execution(node)
        other = await claim(node, "w2")
        real = cluster.stores.log.append

        async def append(batch: AppendBatch) -> Any:
            if any(
                p.execution_id == bad and any(e.type == "command.completed" for e in p.events)
                for p in batch.parts
            ):
                raise ValueError("CHECK constraint")
            return await real(batch)

        monkeypatch.setattr(cluster.stores.log, "append", append)
        replies = await asyncio.gather(
            exchange(node, report_completed(one)), exchange(node, report_completed(other))
        )
        assert [list_statuses(reply.acks) for reply in replies] == [["ok"], ["ok"]]
        assert (await cluster.list_types(bad))[-1] == "execution.quarantined"
        assert "command.completed" in await cluster.list_types(good)


async def test_a_row_is_projected_at_the_next_look_even_if_the_last_one_came_before_the_commit() -> (
    None
):
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        await node.project()
        one, append = await claim(node), cluster.stores.log.append

        async def looked_at(batch: AppendBatch) -> Any:
            await node.server.projector.run_once()
            return await append(batch)

        cluster.stores.log.append = looked_at  # type: ignore[method-assign]
        await exchange(node, report_completed(one))
        await node.server.projector.run_once()
        row = await cluster.stores.projections.read_projection(id_)
        assert row is not None
        assert row.last_seq == await cluster.stores.log.read_last_seq(id_)


async def test_a_command_is_handed_off_with_the_lease_that_the_server_is_told_to_give() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node(lease=60_000_000)
        waiting = asyncio.create_task(exchange(node, free=1, wait=10))
        while not node.server.dispatcher._waiting._polling:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await cluster.start_execution(node)
        (one,) = (await waiting).commands
        cluster.clock.time += 59_000_000
        assert await cluster.stores.queue.expire_leases(10) == 0
        assert await cluster.stores.queue.find_status(one.command_id) == ("leased", 1)
