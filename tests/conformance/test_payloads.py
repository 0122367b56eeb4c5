"""Small payloads: put before the report that names them, or brought by it."""

import pytest

from noetl.log.payloads.port import MAX_BLOB_BYTES
from noetl.model.errors import Conflict, InvalidInput, NotFound
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, RefId
from noetl.model.messages import Start, StoredRef
from noetl.model.reference import Reference
from tests.conformance.conftest import PortWorld
from tests.conformance.shard_owner import (
    execution,
    make_completed,
    make_end,
    make_start,
    owner,
    report,
    signal_like,
)

DATA = b'{"\x00\xc3\xa9": 1}'


def reference(execution_id: ExecutionId, ref_id: str = "1", key: str = "k") -> Reference:
    uri = f"noetl://execution/{execution_id}/result/s/{key}"
    return Reference(ref_id=RefId(ref_id), type="kv", uri=uri, bytes=len(DATA), format="json")


async def start_execution(world: PortWorld, execution_id: ExecutionId) -> Reference:
    await world.inbox.start_execution(
        Start(execution_id=execution_id, path="p", playbook="hash"), {}
    )
    return reference(execution_id)


async def test_a_payload_that_was_put_is_there_before_any_report_names_it(world: PortWorld) -> None:
    ref = await start_execution(world, execution(0))
    assert await world.payloads.read_payload(DEFAULT_TENANT, ref.ref_id, ref.uri) is None
    await world.payloads.put_payload(DEFAULT_TENANT, ref, DATA)
    assert await world.payloads.read_payload(DEFAULT_TENANT, ref.ref_id, ref.uri) == DATA


async def test_a_payload_is_found_under_its_own_id_and_address_only(world: PortWorld) -> None:
    id_ = execution(0)
    ref = await start_execution(world, id_)
    await world.payloads.put_payload(DEFAULT_TENANT, ref, DATA)
    assert (
        await world.payloads.read_payload(
            DEFAULT_TENANT, ref.ref_id, reference(id_, key="other").uri
        )
        is None
    )
    assert await world.payloads.read_payload(DEFAULT_TENANT, RefId("2"), ref.uri) is None
    assert (
        await world.payloads.read_payload(DEFAULT_TENANT, ref.ref_id, reference(execution(1)).uri)
        is None
    )


async def test_the_same_payload_again_is_fine_and_another_is_refused(world: PortWorld) -> None:
    ref = await start_execution(world, execution(0))
    await world.payloads.put_payload(DEFAULT_TENANT, ref, DATA)
    await world.payloads.put_payload(DEFAULT_TENANT, ref, DATA)
    with pytest.raises(Conflict):
        await world.payloads.put_payload(DEFAULT_TENANT, ref, b"{}")
    assert await world.payloads.read_payload(DEFAULT_TENANT, ref.ref_id, ref.uri) == DATA


async def test_the_largest_payload_is_taken_and_a_larger_one_refused(world: PortWorld) -> None:
    ref = await start_execution(world, execution(0))
    with pytest.raises(InvalidInput):
        await world.payloads.put_payload(DEFAULT_TENANT, ref, b"x" * (MAX_BLOB_BYTES + 1))
    assert await world.payloads.read_payload(DEFAULT_TENANT, ref.ref_id, ref.uri) is None
    await world.payloads.put_payload(DEFAULT_TENANT, ref, b"x" * MAX_BLOB_BYTES)
    assert (
        await world.payloads.read_payload(DEFAULT_TENANT, ref.ref_id, ref.uri)
        == b"x" * MAX_BLOB_BYTES
    )


async def test_nothing_is_kept_for_an_execution_that_is_not_there(world: PortWorld) -> None:
    with pytest.raises(NotFound):
        await world.payloads.put_payload(DEFAULT_TENANT, reference(execution(0)), DATA)


async def test_a_payload_that_a_report_brings_is_there_when_its_event_is(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    ref = await start_execution(world, id_)
    await one.write(id_, make_start(id_), refs=(StoredRef(reference=ref, payload=DATA),))
    assert await world.payloads.read_payload(DEFAULT_TENANT, ref.ref_id, ref.uri) == DATA


async def test_a_part_that_is_refused_leaves_no_payload(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    ref = await start_execution(world, id_)
    refused = await one.part(
        id_, make_start(id_), refs=(StoredRef(reference=ref, payload=DATA),), after=7
    )
    await one.append(refused)
    assert await world.payloads.read_payload(DEFAULT_TENANT, ref.ref_id, ref.uri) is None


async def test_a_payload_of_a_report_that_is_accepted_for_another_owner_is_there(
    world: PortWorld,
) -> None:
    one, id_ = await owner(world), execution(0)
    ref = await start_execution(world, id_)
    await one.lease_command(id_)
    stored = StoredRef(reference=ref, payload=DATA)
    assert (
        await world.inbox.accept_report(
            DEFAULT_TENANT, report(id_, make_completed(attempt=2), (stored,))
        )
        is False
    )
    assert await world.payloads.read_payload(DEFAULT_TENANT, ref.ref_id, ref.uri) is None
    assert await world.inbox.accept_report(DEFAULT_TENANT, report(id_, make_completed(), (stored,)))
    assert await world.payloads.read_payload(DEFAULT_TENANT, ref.ref_id, ref.uri) == DATA


async def test_a_report_may_name_what_was_put_with_or_without_bringing_it_again(
    world: PortWorld,
) -> None:
    one, id_ = await owner(world), execution(0)
    ref = await start_execution(world, id_)
    await world.payloads.put_payload(DEFAULT_TENANT, ref, DATA)
    await one.write(
        id_,
        make_start(id_),
        refs=(StoredRef(reference=ref, parent=RefId("5"), inputs=(RefId("6"),)),),
    )
    await one.write(id_, signal_like("a"), refs=(StoredRef(reference=ref, payload=DATA),))
    await world.payloads.put_payload(DEFAULT_TENANT, ref, DATA)
    assert await world.payloads.read_payload(DEFAULT_TENANT, ref.ref_id, ref.uri) == DATA


async def test_what_no_reference_names_is_an_orphan_once_its_execution_has_ended(
    world: PortWorld,
) -> None:
    id_, other = execution(0), execution(1)
    kept, left = reference(id_, "1", "kept").uri, reference(id_, "2", "left").uri
    await start_execution(world, id_)
    await start_execution(world, other)
    one = await owner(world)
    await one.write(id_, make_start(id_), refs=(StoredRef(reference=reference(id_, "1", "kept")),))
    assert await world.payloads.find_orphans(DEFAULT_TENANT, id_, [kept, left]) == []
    await one.write(id_, make_end())
    assert await world.payloads.find_orphans(DEFAULT_TENANT, id_, [kept, left]) == [left]
    assert await world.payloads.find_orphans(DEFAULT_TENANT, id_, []) == []
    assert await world.payloads.find_orphans(DEFAULT_TENANT, other, [reference(other).uri]) == []
    assert (
        await world.payloads.find_orphans(
            DEFAULT_TENANT, execution(2), [reference(execution(2)).uri]
        )
        == []
    )
