"""Bounded caches: what they keep, in which order they drop, and when an entry expires."""

from noetl.caches import ExpiringCache, LruCache, WeightedLruCache


def fill(cache: LruCache[str, str], *keys: str) -> None:
    for key in keys:
        cache.put(key, key.upper())


def test_the_least_recently_used_entry_is_dropped_first() -> None:
    cache = LruCache[str, str](3)
    fill(cache, "a", "b", "c")
    assert cache.get("a") == "A"
    fill(cache, "d")
    assert list(cache) == ["c", "a", "d"]
    assert cache.get("b") is None


def test_replacing_an_entry_makes_it_the_most_recently_used_one() -> None:
    cache = LruCache[str, str](2)
    fill(cache, "a", "b")
    cache.put("a", "again")
    fill(cache, "c")
    assert list(cache.values()) == ["again", "C"]


def test_peeking_and_asking_for_membership_do_not_change_the_order() -> None:
    cache = LruCache[str, str](2)
    fill(cache, "a", "b")
    assert (cache.peek("a"), cache.peek("z"), "a" in cache, "z" in cache) == (
        "A",
        None,
        True,
        False,
    )
    assert cache.peek_oldest() == "A"
    fill(cache, "c")
    assert list(cache) == ["b", "c"]


def test_removed_entries_are_returned_once() -> None:
    cache = LruCache[str, str](3)
    fill(cache, "a", "b", "c")
    assert (cache.pop("b"), cache.pop("b")) == ("B", None)
    assert (cache.pop_oldest(), len(cache)) == ("A", 1)
    cache.clear()
    assert (len(cache), bool(cache), cache.peek_oldest()) == (0, False, None)


def test_a_cache_without_room_keeps_nothing() -> None:
    cache = LruCache[str, str](0)
    fill(cache, "a", "b")
    assert list(cache) == []


def test_the_total_weight_is_bounded() -> None:
    cache = WeightedLruCache[str, str](10, len)
    for key, size in (("a", 4), ("b", 4), ("c", 2)):
        cache.put(key, size * "x")
    assert (list(cache), cache.weight) == (["a", "b", "c"], 10)
    cache.get("a")
    cache.put("d", "x")
    assert (list(cache), cache.weight) == (["c", "a", "d"], 7)


def test_the_weight_follows_every_change() -> None:
    cache = WeightedLruCache[str, str](10, len)
    cache.put("a", "xxxx")
    cache.put("a", "xx")
    assert cache.weight == 2
    cache.put("b", "xxx")
    assert cache.pop("a") == "xx"
    assert cache.pop("a") is None
    assert cache.weight == 3
    assert cache.pop_oldest() == "xxx"
    assert cache.weight == 0
    cache.put("c", "x")
    cache.clear()
    assert (len(cache), cache.weight) == (0, 0)


def test_an_entry_that_is_too_heavy_is_not_kept() -> None:
    cache = WeightedLruCache[str, str](10, len)
    cache.put("a", 11 * "x")
    assert (list(cache), cache.weight) == ([], 0)


def test_entries_and_weight_can_both_be_bounded() -> None:
    cache = WeightedLruCache[str, str](100, len, max_entries=2)
    fill(cache, "a", "b", "c")
    assert list(cache) == ["b", "c"]


def test_bounds_that_apply_later_keep_the_last_entry() -> None:
    cache = WeightedLruCache[str, str](3, len, min_entries=1)
    for key in "abc":
        cache.add_untrimmed(key, 5 * "x")
    assert (len(cache), cache.weight) == (3, 15)
    cache.trim()
    assert (list(cache), cache.weight) == (["c"], 5)


def test_an_entry_expires_at_its_time() -> None:
    cache = ExpiringCache[str, int](10)
    cache.put("a", 1, until=5.0, now=0.0)
    assert cache.get("a", now=4.9) == 1
    assert cache.get("a", now=5.0) is None
    assert (list(cache), len(cache)) == ([], 0)
    assert cache.get("b", now=0.0) is None


def test_expired_entries_are_dropped_when_another_is_added() -> None:
    cache = ExpiringCache[str, int](10)
    cache.put("a", 1, until=1.0, now=0.0)
    cache.put("b", 2, until=9.0, now=0.0)
    cache.put("c", 3, until=9.0, now=1.0)
    assert list(cache) == ["b", "c"]


def test_using_an_expiring_entry_does_not_keep_it_longer_than_others() -> None:
    cache = ExpiringCache[str, int](2)
    cache.put("a", 1, until=9.0, now=0.0)
    cache.put("b", 2, until=9.0, now=0.0)
    assert cache.get("a", now=1.0) == 1
    cache.put("c", 3, until=9.0, now=1.0)
    assert list(cache) == ["b", "c"]
