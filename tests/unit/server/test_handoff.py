"""Commands that are handed to waiting workers: each place is reserved once, and no command is lost."""

from hypothesis import given
from hypothesis import strategies as st

from noetl.model.commands import Command
from noetl.model.ids import ActivationId, CommandId, ExecutionId
from noetl.server.workers.handoff import NEVER, WaitingRequest, WaitingWorkers


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
    first = waiting.add_request("w1", ("python",), 1)
    second = waiting.add_request("w2", ("python", "spark"), 1)
    assert waiting.reserve_place("python") is first
    assert waiting.reserve_place("python") is second
    assert waiting.reserve_place("python") is None
    assert waiting.reserve_place("spark") is None, "its one place is reserved for the other pool"


def test_a_request_that_brings_reports_comes_before_polls() -> None:
    waiting = WaitingWorkers()
    poll = waiting.add_request("w1", ("python",), 1)
    reporting = waiting.add_request("w1", ("python",), 1, reports=True)
    assert waiting.reserve_place("python") is reporting
    assert waiting.reserve_place("python") is poll
    reporting.give_back()
    waiting.remove_request(reporting)
    assert waiting.reserve_place("python") is None, "a request with its reply waits no more"


def test_a_hint_wakes_polls_and_requests_that_bring_reports() -> None:
    waiting = WaitingWorkers()
    poll = waiting.add_request("w1", ("python",), 1)
    reporting = waiting.add_request("w2", ("python",), 1, reports=True)
    waiting.wake_pools(("python",))
    assert poll.woken.is_set()
    assert reporting.woken.is_set()


def test_a_place_that_is_given_back_is_open_again() -> None:
    waiting = WaitingWorkers()
    request = waiting.add_request("w1", ("python",), 1)
    assert waiting.reserve_place("python") is request
    request.give_back()
    assert waiting.reserve_place("python") is request


def test_a_claim_takes_every_open_place_but_none_that_is_reserved() -> None:
    waiting = WaitingWorkers()
    request = waiting.add_request("w1", ("python",), 3)
    waiting.reserve_place("python")
    assert request.reserve_all() == 2
    assert waiting.reserve_place("python") is None
    assert request.reserve_all() == 0


def test_a_command_wakes_its_request() -> None:
    waiting = WaitingWorkers()
    request = waiting.add_request("w1", ("python",), 1)
    request.reserve_one()
    request.give_command(make_command())
    assert request.woken.is_set()
    assert request.given_commands == [make_command()]


def test_a_late_command_goes_to_another_request_of_the_same_worker() -> None:
    waiting = WaitingWorkers()
    answered = waiting.add_request("w1", ("python",), 1)
    foreign = waiting.add_request("w2", ("python",), 1)
    answered.reserve_one()
    waiting.remove_request(answered)
    present = waiting.add_request("w1", ("python",), 0)
    answered.give_command(make_command())
    assert present.given_commands == [make_command()]
    assert present.woken.is_set()
    assert foreign.given_commands == []
    assert not waiting.take_owed("w1")


def test_a_late_command_without_a_request_is_owed_once() -> None:
    waiting = WaitingWorkers()
    answered = waiting.add_request("w1", ("python",), 1)
    answered.reserve_one()
    waiting.remove_request(answered)
    answered.give_command(make_command())
    assert not waiting.take_owed("w2")
    assert waiting.take_owed("w1")
    assert not waiting.take_owed("w1")


def test_a_request_with_its_reply_gets_no_place() -> None:
    waiting = WaitingWorkers()
    request = waiting.add_request("w1", ("python",), 1)
    waiting.remove_request(request)
    assert waiting.reserve_place("python") is None


def test_pools_are_empty_until_a_hint_comes() -> None:
    waiting = WaitingWorkers()
    request = waiting.add_request("w1", ("python",), 1)
    assert waiting.empty_since(("python", "spark")) == NEVER
    waiting.mark_empty(("python",), 5.0)
    assert waiting.empty_since(("python", "spark")) == NEVER
    waiting.mark_empty(("spark",), 7.0)
    assert waiting.empty_since(("python", "spark")) == 5.0
    waiting.wake_pools(("python",))
    assert request.woken.is_set()
    assert waiting.empty_since(("python",)) == NEVER
    waiting.forget_empty(("spark",))
    assert waiting.empty_since(("spark",)) == NEVER
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
    given_to: dict[str, int] = {"w0": 0, "w1": 0, "w2": 0}
    places: dict[WaitingRequest, int] = {}
    owed: set[str] = set()
    for number, (action, which) in enumerate(actions):
        if action == "arrive":
            request = waiting.add_request(
                f"w{which}", ("python",), which + 1, reports=number % 2 == 0
            )
            places[request] = which + 1
            present.append(request)
            requests.append(request)
        elif action == "leave" and present:
            waiting.remove_request(present.pop(which % len(present)))
        elif action == "reserve":
            place = waiting.reserve_place("python")
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
