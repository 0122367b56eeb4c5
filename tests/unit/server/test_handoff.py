"""Commands that are handed to waiting workers: each place is reserved once, and no command is lost."""

from hypothesis import given
from hypothesis import strategies as st

from noetl.model.commands import Command
from noetl.model.ids import DEFAULT_TENANT, ActivationId, CommandId, ExecutionId, Tenant
from noetl.server.workers.handoff import (
    NEVER,
    Holder,
    TenantPool,
    WaitingRequest,
    WaitingWorkers,
)

PYTHON, SPARK = TenantPool(DEFAULT_TENANT, "python"), TenantPool(DEFAULT_TENANT, "spark")


def name_worker(number: int, tenant: Tenant = DEFAULT_TENANT) -> Holder:
    return Holder(tenant, f"w{number}")


W1, W2 = name_worker(1), name_worker(2)


def make_command(number: int = 1) -> Command:
    return Command(
        command_id=CommandId(f"c{number}"),
        execution_id=ExecutionId("7"),
        playbook="p",
        step="s",
        activation=ActivationId("a"),
        kind="run",
        pool="python",
    )


def test_the_worker_that_has_waited_longest_gets_the_place() -> None:
    waiting = WaitingWorkers()
    first = waiting.add_request(W1, (PYTHON,), 1)
    second = waiting.add_request(W2, (PYTHON, SPARK), 1)
    assert waiting.reserve_place(PYTHON) is first
    assert waiting.reserve_place(PYTHON) is second
    assert waiting.reserve_place(PYTHON) is None
    assert waiting.reserve_place(SPARK) is None, "its one place is reserved for the other pool"


def test_workers_of_another_tenant_get_no_place_of_a_pool_with_the_same_name() -> None:
    theirs = Tenant(2)
    waiting = WaitingWorkers()
    foreign = waiting.add_request(name_worker(1, theirs), (TenantPool(theirs, "python"),), 1)
    assert waiting.reserve_place(PYTHON) is None
    waiting.wake_pools((PYTHON,))
    assert not foreign.woken.is_set()
    ours = waiting.add_request(W1, (PYTHON,), 1)
    assert waiting.reserve_place(PYTHON) is ours
    waiting.remove_request(ours)
    ours.give_command(make_command())
    assert foreign.given_commands == [], "it has the same name"
    assert not waiting.take_owed(name_worker(1, theirs))
    assert waiting.take_owed(W1)


def test_a_request_that_brings_reports_comes_before_polls() -> None:
    waiting = WaitingWorkers()
    poll = waiting.add_request(W1, (PYTHON,), 1)
    reporting = waiting.add_request(W1, (PYTHON,), 1, reports=True)
    assert waiting.reserve_place(PYTHON) is reporting
    assert waiting.reserve_place(PYTHON) is poll
    reporting.give_back()
    waiting.remove_request(reporting)
    assert waiting.reserve_place(PYTHON) is None, "a request with its reply waits no more"


def test_a_hint_wakes_polls_and_requests_that_bring_reports() -> None:
    waiting = WaitingWorkers()
    poll = waiting.add_request(W1, (PYTHON,), 1)
    reporting = waiting.add_request(W2, (PYTHON,), 1, reports=True)
    waiting.wake_pools((PYTHON,))
    assert poll.woken.is_set()
    assert reporting.woken.is_set()


def test_a_place_that_is_given_back_is_open_again() -> None:
    waiting = WaitingWorkers()
    request = waiting.add_request(W1, (PYTHON,), 1)
    assert waiting.reserve_place(PYTHON) is request
    request.give_back()
    assert waiting.reserve_place(PYTHON) is request


def test_a_claim_takes_every_open_place_but_none_that_is_reserved() -> None:
    waiting = WaitingWorkers()
    request = waiting.add_request(W1, (PYTHON,), 3)
    waiting.reserve_place(PYTHON)
    assert request.reserve_all() == 2
    assert waiting.reserve_place(PYTHON) is None
    assert request.reserve_all() == 0


def test_a_command_wakes_its_request() -> None:
    waiting = WaitingWorkers()
    request = waiting.add_request(W1, (PYTHON,), 1)
    request.reserve_one()
    request.give_command(make_command())
    assert request.woken.is_set()
    assert request.given_commands == [make_command()]


def test_a_late_command_goes_to_another_request_of_the_same_worker() -> None:
    waiting = WaitingWorkers()
    answered = waiting.add_request(W1, (PYTHON,), 1)
    foreign = waiting.add_request(W2, (PYTHON,), 1)
    answered.reserve_one()
    waiting.remove_request(answered)
    present = waiting.add_request(W1, (PYTHON,), 0)
    answered.give_command(make_command())
    assert present.given_commands == [make_command()]
    assert present.woken.is_set()
    assert foreign.given_commands == []
    assert not waiting.take_owed(W1)


def test_a_late_command_without_a_request_is_owed_once() -> None:
    waiting = WaitingWorkers()
    answered = waiting.add_request(W1, (PYTHON,), 1)
    answered.reserve_one()
    waiting.remove_request(answered)
    answered.give_command(make_command())
    assert not waiting.take_owed(W2)
    assert waiting.take_owed(W1)
    assert not waiting.take_owed(W1)


def test_a_request_with_its_reply_gets_no_place() -> None:
    waiting = WaitingWorkers()
    request = waiting.add_request(W1, (PYTHON,), 1)
    waiting.remove_request(request)
    assert waiting.reserve_place(PYTHON) is None


def test_pools_are_empty_until_a_hint_comes() -> None:
    waiting = WaitingWorkers()
    request = waiting.add_request(W1, (PYTHON,), 1)
    assert waiting.empty_since((PYTHON, SPARK)) == NEVER
    waiting.mark_empty((PYTHON,), 5.0)
    assert waiting.empty_since((PYTHON, SPARK)) == NEVER
    waiting.mark_empty((SPARK,), 7.0)
    assert waiting.empty_since((PYTHON, SPARK)) == 5.0
    waiting.wake_pools((PYTHON,))
    assert request.woken.is_set()
    assert waiting.empty_since((PYTHON,)) == NEVER
    waiting.forget_empty((SPARK,))
    assert waiting.empty_since((SPARK,)) == NEVER
    assert waiting.empty_since(()) == NEVER


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "leave", "reserve", "give", "give back", "claim"]),
        st.integers(0, 2),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_no_place_is_used_twice_and_no_command_is_lost(actions: list[tuple[str, int]]) -> None:
    """In any order: a request never gets more commands than it had places, except late ones of
    its worker; and each command is at a request of its worker, or owed to it."""
    waiting = WaitingWorkers()
    present: list[WaitingRequest] = []
    reserved: list[WaitingRequest] = []
    requests: list[WaitingRequest] = []
    given_to: dict[Holder, int] = {name_worker(number): 0 for number in range(3)}
    places: dict[WaitingRequest, int] = {}
    owed: set[Holder] = set()
    for number, (action, which) in enumerate(actions):
        if action == "arrive":
            request = waiting.add_request(
                name_worker(which), (PYTHON,), which + 1, reports=number % 2 == 0
            )
            places[request] = which + 1
            present.append(request)
            requests.append(request)
        elif action == "leave" and present:
            waiting.remove_request(present.pop(which % len(present)))
        elif action == "reserve":
            place = waiting.reserve_place(PYTHON)
            open_places = sum(request.open_places for request in present)
            assert place is not None or open_places == 0
            if place is not None:
                assert place in present
                reserved.append(place)
        elif action == "give" and reserved:
            request = reserved.pop(which % len(reserved))
            before = sum(len(each.given_commands) for each in requests)
            request.give_command(make_command(number))
            given_to[request.worker] += 1
            if sum(len(each.given_commands) for each in requests) == before:
                owed.add(request.worker)
                assert not any(each.worker == request.worker for each in present)
        elif action == "give back" and reserved:
            reserved.pop(which % len(reserved)).give_back()
        elif action == "claim" and present:
            request = present[which % len(present)]
            places[request] -= request.reserve_all()
        for request in requests:
            assert request.open_places >= 0
            assert request.reserved_places == reserved.count(request)
            assert request.open_places + request.reserved_places <= places[request]
    for worker, count in given_to.items():
        received = sum(len(each.given_commands) for each in requests if each.worker == worker)
        assert received == count or worker in owed
        assert waiting.take_owed(worker) == (worker in owed)
