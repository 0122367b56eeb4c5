"""Bands: any split of a log folds to the same, sums stay as buckets double, and nothing grows with the log."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl.engine import bands as b
from noetl.engine.bands import Bands, decode_bands, encode_bands, fold_band
from noetl.engine.buckets import MAX_BUCKETS, SERIES, SUMMED, Buckets
from noetl.engine.execution_fold import ExecutionFold, decode_fold, make_empty_fold
from noetl.model import events as e
from noetl.model.failure_kinds import MAX_KINDS, make_failure_shape
from noetl.model.ids import ExecutionId
from tests.examples import count_examples
from tests.play import EXECUTION
from tests.property.playbooks import documents
from tests.property.test_engine import Walk

QUIET = settings(
    max_examples=count_examples(30), deadline=None, suppress_health_check=list(HealthCheck)
)
START = 1_750_000_000_000_000


def make_log(document: dict[str, Any], data: st.DataObject) -> list[e.Event]:
    walk = Walk(document)
    walk.start()
    for number in range(data.draw(st.integers(0, 20))):
        walk.now += data.draw(st.sampled_from([0, 10, 1_000, 700_000, 90_000_000]))
        walk.act(data.draw, number)
    walk.drain()
    return walk.log


def fold_log(log: list[e.Event], cuts: set[int]) -> ExecutionFold:
    """Fold a log; at each cut the fold is stored and read back."""
    fold = make_empty_fold(ExecutionId(EXECUTION))
    for number, event in enumerate(log):
        if number in cuts:
            stored = decode_fold(*_encode(fold), fold.seq)
            fold = stored
        fold.fold_event(number * 3 + 1, event)
    return fold


def _encode(fold: ExecutionFold) -> tuple[bytes, bytes]:
    encoded = fold.encode_snapshot()
    assert encoded is not None
    return encoded


@QUIET
@given(documents(), st.data())
def test_any_split_of_a_log_folds_to_the_same(
    document: dict[str, Any], data: st.DataObject
) -> None:
    log = make_log(document, data)
    cuts = data.draw(st.sets(st.integers(0, len(log)), max_size=6))
    whole, in_pieces = fold_log(log, set()), fold_log(log, cuts)
    assert encode_bands(in_pieces.bands) == encode_bands(whole.bands)
    assert in_pieces.state == whole.state


@QUIET
@given(documents(), st.data())
def test_bands_count_what_the_log_says(document: dict[str, Any], data: st.DataObject) -> None:
    log = make_log(document, data)
    fold = fold_log(log, set())
    ends = (e.CommandCompleted, e.CommandFailed, e.CommandDead, e.CommandCancelled)
    assert sum_series(fold.bands, "ended") == len([x for x in log if isinstance(x, ends)])
    items = [x.items for x in log if isinstance(x, e.CommandCompleted | e.CommandProgress)]
    counted = sum(x.ok + x.failed + x.skipped for x in items if x is not None)
    assert sum_series(fold.bands, "items") == counted
    verdicts = [v for x in log if isinstance(x, e.NextEvaluated) for v in x.verdicts]
    skips = [x for x in log if isinstance(x, e.StepSkipped) and x.next is not None]
    skipped = [arc for name, arc in fold.bands.arcs.items() if ":skip:" in name]
    assert sum(arc.taken for arc in skipped) == len(skips)
    arcs = [arc for name, arc in fold.bands.arcs.items() if ":skip:" not in name]
    for word in ("taken", "false", "error", "untried"):
        expected = len([verdict for verdict in verdicts if verdict.verdict == word])
        assert sum(getattr(arc, word) for arc in arcs) == expected
    for command_id in fold.bands.commands:
        assert command_id in fold.state.commands
    for name, band in fold.bands.steps.items():
        assert band.failed >= sum(kind.count for kind in band.kinds), name


def sum_series(bands: Bands, name: str) -> int:
    return sum(sum(getattr(band.buckets, name)) for band in bands.steps.values())


@QUIET
@given(st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**11)), max_size=60))
def test_sums_are_conserved_when_widths_double(spans: list[tuple[int, int]]) -> None:
    buckets = Buckets()
    busy = 0
    slowest = 0
    for at, duration in sorted(spans):
        end = START + at
        buckets.add("ended", end)
        start = max(end - duration, buckets.start)
        buckets.add_busy_time(start, end)
        buckets.note_duration(end, duration)
        busy += end - start
        slowest = max(slowest, duration)
    assert sum(buckets.ended) == len(spans)
    assert sum(buckets.busy_us) == busy
    assert max(buckets.slowest_us, default=0) == slowest
    lengths = {len(getattr(buckets, name)) for name in SERIES}
    assert len(lengths) == 1
    assert lengths.pop() <= MAX_BUCKETS
    assert all(value >= 0 for name in SUMMED for value in getattr(buckets, name))


@QUIET
@given(st.integers(1, 5), st.integers(0, 10**6))
def test_doubling_merges_neighbours(exponent: int, offset: int) -> None:
    buckets = Buckets()
    first = START + offset * 1_000
    for number in range(MAX_BUCKETS):
        buckets.add("started", first + number * 1_000, number + 1)
    before = {buckets.start + n * 1_000: value for n, value in enumerate(buckets.started)}
    buckets.find_bucket(first + MAX_BUCKETS * 1_000 * 2**exponent - 1_000 * 2**exponent)
    for number, value in enumerate(buckets.started):
        low = buckets.start + number * buckets.width_us
        inside = [v for at, v in before.items() if low <= at < low + buckets.width_us]
        assert value == sum(inside)


def test_size_of_bands_does_not_grow_with_the_log() -> None:
    sizes: list[int] = []
    bands = Bands()
    seq = 0
    for round_number in range(1, 5):
        for number in range(4_000):
            seq += 1
            fold_band(bands, seq, make_failed_chunk(seq, number))
        bands.commands.clear()
        sizes.append(len(encode_bands(bands)))
        assert sum(band.failed for band in bands.steps.values()) == round_number * 4_000
    assert sizes[3] < 1.3 * sizes[1]
    band = bands.steps["s"]
    assert len(band.kinds) == MAX_KINDS
    assert len(bands.marks["failed"].marks) <= b.MAX_MARKS_PER_KIND
    assert decode_bands(encode_bands(bands)) == bands


def make_failed_chunk(seq: int, number: int) -> e.Event:
    """A chunk that failed in one of many ways, at a time of its own."""
    words = "one two three four five six seven eight nine ten eleven".split()
    error = b.Failure(code="BROKEN", message=f"item {seq} is {words[number % len(words)]}")
    return e.CommandCompleted(
        at=START + seq * 1_234_567,
        command_id=e.CommandId(f"c{seq}"),
        attempt=1,
        result=e.Envelope(status="ok"),
        step="s",
        items=e.Items(failed=1, first_error=error, first_failed=seq),
    )


@given(st.integers(), st.text(alphabet="abc'\" "), st.floats(0, 1e9))
def test_shape_of_a_failure_does_not_depend_on_its_numbers(n: int, text: str, x: float) -> None:
    quoted = text.replace("'", "").replace('"', "")
    expected = make_failure_shape("cannot score 1: got 'a' after 1.5 s")
    assert make_failure_shape(f"cannot score {n}: got '{quoted}' after {x:.3f} s") == expected
