"""How often a caller may fail."""

import pytest

from noetl.model.errors import TooManyRequests
from noetl.server.accounts.throttle import Throttle, TryLimit, make_address_key

LIMIT = TryLimit(tries=3, seconds_per_try=10.0)


def test_tries_are_limited_and_come_back_with_time() -> None:
    throttle = Throttle(LIMIT)
    for _ in range(3):
        throttle.take_try("ada", 100.0)
    with pytest.raises(TooManyRequests) as refused:
        throttle.take_try("ada", 104.0)
    assert refused.value.retry_after_s == 6
    throttle.take_try("bob", 104.0)
    throttle.take_try("ada", 110.0)
    with pytest.raises(TooManyRequests):
        throttle.take_try("ada", 110.0)


def test_a_success_costs_no_try() -> None:
    throttle = Throttle(LIMIT)
    for _ in range(20):
        throttle.take_try("ada", 100.0)
        throttle.give_back("ada")
    throttle.give_back("nobody")
    for _ in range(3):
        throttle.take_try("ada", 100.0)
    with pytest.raises(TooManyRequests):
        throttle.take_try("ada", 100.0)


def test_memory_is_bounded() -> None:
    throttle = Throttle(LIMIT, max_buckets=100)
    for number in range(10_000):
        throttle.take_try(str(number), float(number))
    assert len(throttle) == 100


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:2", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_addresses_of_one_network_of_ipv6_are_one_caller(address: str, key: str) -> None:
    assert make_address_key(address) == key
