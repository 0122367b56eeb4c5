"""Delays between tries: how they grow, where they end, and how chance spreads them."""

import pytest

from noetl.backoff import Backoff, compute_delay, spread_delay


def count_delays(backoff: Backoff, number: int) -> list[float]:
    delays = []
    for _ in range(number):
        delays.append(backoff.delay)
        backoff.count_failure()
    return delays


def test_delays_double_up_to_the_longest() -> None:
    assert count_delays(Backoff(0.05, 1.0), 7) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_success_begins_with_the_first_delay_again() -> None:
    backoff = Backoff(0.05, 2.0)
    count_delays(backoff, 4)
    assert backoff.failures == 4
    backoff.reset()
    assert (backoff.failures, backoff.delay) == (0, 0.05)


def test_a_first_delay_beyond_the_longest_is_not_shortened() -> None:
    assert count_delays(Backoff(5.0, 2.0), 3) == [5.0, 2.0, 2.0]
    assert compute_delay(5.0, 2.0, 0) == 2.0


def test_many_failures_do_not_overflow() -> None:
    assert Backoff(0.05, 2.0, failures=1_000_000).delay == 2.0
    assert compute_delay(1.0, 1e300, 1_000_000) == 1e9


@pytest.mark.parametrize(
    ("factor", "delays"), [(1.0, [4, 4, 4]), (1.5, [4, 6, 9]), (3.0, [4, 12, 30]), (0.5, [4, 2, 1])]
)
def test_the_factor_says_how_fast_delays_grow(factor: float, delays: list[float]) -> None:
    assert [compute_delay(4, 30, failures, factor) for failures in range(3)] == delays
    assert count_delays(Backoff(4, 30, factor), 3) == delays


def test_chance_spreads_a_share_of_the_delay() -> None:
    assert spread_delay(8.0, 0.0, 0.3) == 8.0
    assert [spread_delay(8.0, 0.5, chance) for chance in (0.0, 0.5)] == [4.0, 6.0]
    assert spread_delay(8.0, 1.0, 0.25) == 2.0
