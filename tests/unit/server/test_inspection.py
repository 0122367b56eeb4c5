"""Views of an execution made of its events alone: pages, spans, links, summaries, groups."""

from typing import Any, get_args

import msgspec
import pytest

from noetl.engine.execution_fold import ExecutionFold, make_empty_fold
from noetl.engine.explain import explain
from noetl.log.events.port import RecordedEvent
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.event_groups import GROUP_BITS, find_groups, find_stored_groups
from noetl.model.ids import ExecutionId
from noetl.server.executions.details import make_children_view
from noetl.server.inspection.causality import link_events
from noetl.server.inspection.page import MAX_PAGE_BYTES, PageFacts, make_page
from noetl.server.inspection.spans import make_spans
from noetl.server.inspection.summaries import _SUMMARIES, MAX_SUMMARY_CHARS, summarize_event
from noetl.server.inspection.timeline import TimeWindow, WindowSpans, make_band_view, make_timeline
from noetl.server.inspection.views import PageView
from noetl.server.inspection.watching import LivePage, copy_bands, make_change
from tests.play import EXECUTION, Play, workflow

PYTHON = 'tool: {kind: python, code: "result = 1"}'
LOOP = f"""
- step: score
  loop: {{in: "{{{{ range(0, 6) }}}}", iterator: item, spec: {{mode: parallel, chunk: 2, policy: {{failure: best_effort}}}}}}
  {PYTHON}
  next: report
- {{step: report, {PYTHON}}}
"""
ID = ExecutionId(EXECUTION)
FACTS = PageFacts(
    queued={},
    cause=None,
    line=None,
    children=make_children_view({}, []),
    retried_by=[],
    workload_keys=[],
    events=0,
    last_seq=0,
    is_live=True,
)


def record(play: Play) -> list[RecordedEvent]:
    """The log of a play, as if other executions had written between its events."""
    return [RecordedEvent(ID, 0, 2 * n, 1, event) for n, event in enumerate(play.log, 1)]


def fold(play: Play, upto: int | None = None) -> ExecutionFold:
    made = make_empty_fold(ID)
    for recorded in record(play)[:upto]:
        made.fold_event(recorded.seq, recorded.event)
    return made


def show(play: Play) -> PageView:
    return make_page(fold(play), FACTS)


def play_loop(failed: tuple[int, ...] = ()) -> Play:
    play = Play(workflow(LOOP)).start()
    for _ in range(3):
        play.now += 10_000
        play.chunk(play.command("score"), failed=failed)
    return play


def test_page_counts_items_and_groups_their_failures() -> None:
    page = show(play_loop(failed=(1, 4, 5)))
    loop = page.steps["score"].loop
    assert loop is not None
    assert (loop.total, loop.done, loop.ok, loop.failed) == (6, 6, 3, 3)
    (kind,) = page.failures.kinds
    assert (kind.shape, kind.count, kind.step) == ("item … is bad", 3, "score")
    assert kind.first.item == 1
    assert page.failures.total == 3
    assert page.arcs["score:0"].taken == 1


def test_running_loop_has_a_rate_and_says_how_long_it_takes() -> None:
    play = Play(workflow(LOOP)).start()
    play.now += 1_000_000
    play.chunk(play.command("score"))
    loop = show(play).steps["score"].loop
    assert loop is not None
    assert loop.done == 2
    assert loop.rate == pytest.approx(2.0, rel=0.01)
    assert loop.seconds_left == pytest.approx(2.0, rel=0.05)


def test_held_step_waits() -> None:
    steps = f"""
- {{step: a, {PYTHON}, next: [{{step: b}}, {{step: c}}]}}
- {{step: b, {PYTHON}, next: d}}
- {{step: c, {PYTHON}, next: d}}
- {{step: d, {PYTHON}}}
"""
    text = workflow(
        steps.replace("next: [", "next: {spec: {mode: inclusive}, arcs: [").replace(
            "{step: c}]}", "{step: c}]}}"
        )
    )
    play = Play(text).start()
    play.complete(play.command("a"))
    play.complete(play.command("b"))
    page = show(play)
    assert (page.steps["d"].status, page.steps["c"].status) == ("waiting", "running")
    told = explain(play.fixed, play.state, "d")
    assert msgspec.to_builtins(told.causes[0]) == {"kind": "held", "from": ["b"], "by": ["c"]}


def test_page_is_cut_to_its_size_and_says_what_is_left_out() -> None:
    steps = "\n".join(
        f"- {{step: s{n}, {PYTHON}, next: s{n + 1}, set: {{ctx.v{n}: '{'x' * 60}'}}}}"
        for n in range(400)
    )
    play = Play(workflow(f"{steps}\n- {{step: s400, {PYTHON}}}")).start().run()
    page = show(play)
    assert len(msgspec.json.encode(page)) <= MAX_PAGE_BYTES
    assert page.ctx is None
    assert page.ctx_bytes > 16 * 1024
    assert len(page.steps) < 401
    assert any(note.startswith("steps:") for note in page.left_out)
    assert any(note.startswith("ctx") for note in page.left_out)


def test_spans_have_every_attempt_of_a_command() -> None:
    play = Play(workflow(f"- {{step: a, {PYTHON}}}")).start()
    command = play.command("a")
    play.now += 5_000
    play.tell(m.LeaseLost(command_id=command.command_id, attempt=1, worker="w1"))
    play.now += 5_000
    again = play.command("a")
    play.complete(again, 1, started_at=play.now - 1_000)
    first, second = make_spans(make_empty_fold(ID), record(play))
    assert (first.attempt, first.status, first.worker) == (1, "returned", "w1")
    assert (second.attempt, second.status, second.worker) == (2, "completed", "w1")
    assert second.started is not None


def test_spans_of_a_window_begin_with_what_is_live() -> None:
    play = play_loop()
    events = record(play)
    cut = next(n for n, each in enumerate(events) if isinstance(each.event, e.CommandCompleted))
    base = fold(play, cut)
    spans = make_spans(base, events[cut:], "score")
    assert len(spans) == 3
    assert {span.status for span in spans} == {"completed"}
    assert sum(span.ok for span in spans) == 6


def test_window_without_room_for_spans_says_where_to_look() -> None:
    bands = fold(play_loop()).bands
    window = TimeWindow(1_000_000, 2_000_000)
    timeline = make_timeline(bands, window, WindowSpans(None, 40_000), 512, None)
    assert not timeline.exact
    assert timeline.next_zoom == {
        "from": "1970-01-01T00:00:01.000000Z",
        "to": "1970-01-01T00:00:01.125000Z",
    }


def test_fewer_buckets_have_the_same_sums() -> None:
    band = fold(play_loop(failed=(1,))).bands.steps["score"]
    window = TimeWindow(0, 10**9)
    whole = make_band_view(band, window, 512)
    few = make_band_view(band, window, 2)
    assert len(few.items) <= 2 < len(whole.items)
    for name in ("started", "ended", "items", "failed", "busy_us"):
        assert sum(getattr(few, name)) == sum(getattr(whole, name))
    assert max(few.slowest_us) == max(whole.slowest_us)


def test_changes_of_a_page_have_only_what_has_changed() -> None:
    play = Play(workflow(LOOP)).start()
    before = LivePage(show(play), 0, copy_bands(fold(play).bands))
    assert make_change(before, before) is None
    play.now += 10_000
    play.chunk(play.command("score"))
    after = LivePage(show(play), 0, copy_bands(fold(play).bands))
    change = make_change(before, after)
    assert change is not None
    assert list(change.steps) == ["score"]
    assert change.arcs == {}
    band = change.bands["score"]
    whole = after.series["score"].series
    assert band.items == whole["items"][band.from_ :]
    shown = before.series["score"].series["items"][: band.from_] + band.items
    assert shown == whole["items"]


def test_every_event_has_a_summary() -> None:
    assert set(_SUMMARIES) | {e.ArrivalsInherited} == set(get_args(e.Event))
    for each in record(play_loop(failed=(1,))):
        assert 0 < len(summarize_event(each.event)) <= MAX_SUMMARY_CHARS


def test_summary_of_a_chunk_counts_its_items() -> None:
    play = play_loop(failed=(1,))
    summaries = [summarize_event(event) for event in play.log]
    assert "score: items 0–1: 1 ok, 1 failed: ITEM: item 1 is bad" in summaries
    assert "score: loop over 6 items done: 5 ok, 1 failed" in summaries


def test_all_events_but_the_first_have_a_cause() -> None:
    events = record(play_loop())
    links = link_events(events)
    without = [each.event.type for each in events if each.seq not in links.causes]
    assert without == ["playbook.initialized"]
    for effect, causes in links.causes.items():
        assert all(cause < effect for cause in causes)
        assert all(effect in links.led_to[cause] for cause in causes)


def test_groups_of_a_log_without_troubles_are_not_stored() -> None:
    play = (
        Play(workflow(f"- {{step: a, {PYTHON}, next: b}}\n- {{step: b, {PYTHON}}}")).start().run()
    )
    assert [event.type for event in play.log if find_stored_groups(event)] == []
    life = [event.type for event in play.log if find_groups(event) & GROUP_BITS["life"]]
    assert life == ["playbook.initialized", "workflow.initialized", "playbook.completed"]


def test_groups_of_failed_items_and_loops_are_stored() -> None:
    play = play_loop(failed=(1,))
    stored: dict[str, int] = {}
    for event in play.log:
        stored[event.type] = stored.get(event.type, 0) | find_stored_groups(event)
    found = {name: bits for name, bits in stored.items() if bits}
    assert found == {
        "command.completed": GROUP_BITS["failures"],
        "loop.started": GROUP_BITS["loops"],
        "loop.done": GROUP_BITS["loops"],
    }


def test_explanation_of_a_failed_router_is_its_error() -> None:
    text = workflow(
        f"- {{step: a, {PYTHON}, next: [{{step: b, when: '{{{{ a.n > 1 }}}}'}}]}}\n- {{step: b, {PYTHON}}}"
    )
    play = Play(text).start()
    play.complete(play.command("a"), {"n": "text"})
    made = fold(play)
    told = explain(play.fixed, play.state, "a", made.bands)
    assert told.verdict == "failed"
    cause: Any = told.causes[0]
    assert (cause.seq, cause.message) == (told.causes[-1].seq, told.because[0])  # type: ignore[union-attr]
    assert make_page(made, FACTS).steps["a"].error is not None
