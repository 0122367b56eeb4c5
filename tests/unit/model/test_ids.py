import pytest

from noetl.model.ids import Snowflakes, activation_id, command_id, derive_id, shard_of, timer_id

JANUARY_2026 = 1_767_225_600_000_000


def test_equal_causes_give_equal_ids() -> None:
    assert activation_id("1", "load", "start") == activation_id("1", "load", "start")
    assert command_id("a", "run") == command_id("a", "run")
    assert timer_id("a", "timeout") == timer_id("a", "timeout")


def test_ids_are_the_same_in_every_release() -> None:
    """Stored ids are compared with derived ones for ever: a change here breaks every log."""
    assert derive_id("activation", "1", "load", "start") == "7603771b641f5228ac5b5681d5ad4436"


def test_parts_of_a_cause_do_not_run_together() -> None:
    assert derive_id("ab", "c") != derive_id("a", "bc")
    assert derive_id("a", 1) == derive_id("a", "1")


def test_shards_are_the_same_in_every_release() -> None:
    assert [shard_of(str(number), 16) for number in (1, 2, 3, 2**62, 2**63 - 1)] == [
        5,
        10,
        0,
        5,
        13,
    ]


def test_shards_are_used_evenly() -> None:
    source, used = Snowflakes(3), [0] * 16
    for number in range(16_000):
        used[shard_of(source.draw_id(JANUARY_2026 + number * 1000), 16)] += 1
    assert min(used) > 800
    assert max(used) < 1200


def test_snowflakes_of_one_millisecond_differ_and_grow() -> None:
    source = Snowflakes(1)
    made = [int(source.draw_id(JANUARY_2026)) for _ in range(10_000)]
    assert made == sorted(set(made))


def test_a_clock_that_goes_back_makes_no_older_id() -> None:
    source = Snowflakes(1)
    first, second = source.draw_id(JANUARY_2026), source.draw_id(JANUARY_2026 - 60_000_000)
    assert int(second) > int(first)


def test_a_node_number_must_fit() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Snowflakes(1024)
