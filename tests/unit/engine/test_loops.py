"""Loops: windows, chunks, failure policies, reducers, cursors, epochs; every epoch closes exactly once."""

from itertools import pairwise
from typing import Any

import pytest

from noetl.engine.interpretation import Refusal
from noetl.engine.loops import MAX_ITEM_COMMANDS, MAX_LOOP_COMMANDS
from noetl.engine.state import encode_execution
from noetl.model import decisions as d
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.envelope import NOT_WRITTEN, Envelope, Selected, make_failed_envelope
from noetl.model.errors import Failure
from noetl.model.ids import RefId
from noetl.model.reference import Reference
from noetl.playbook.assignments import make_link
from tests.play import Play, workflow

PYTHON = 'tool: {kind: python, code: "result = 1"}'


def loop(spec: str = "{}", items: Any = 10, **extra: str) -> Play:
    more = "".join(f"\n  {key}: {value}" for key, value in extra.items())
    text = workflow(f"""
- step: each
  loop: {{in: "{{{{ workload['items'] }}}}", iterator: x, spec: {spec}}}
  {PYTHON}{more}
  next: [{{step: bad, when: "{{{{ event.name == 'call.error' or error is defined }}}}"}}, end]
- {{step: end}}
- {{step: bad}}
""")
    return Play(text, {"items": list(range(items)) if isinstance(items, int) else items}).start()


def stats(p: Play) -> tuple[int, int, int, int]:
    s = p.check().find_last(e.LoopDone).stats
    assert s.total == s.ok + s.failed + s.skipped
    assert p.types("loop.done") == ["loop.done"]
    return s.total, s.ok, s.failed, s.skipped


def test_an_empty_collection_is_done_at_once() -> None:
    for nothing in ([], None):
        p = loop(items=nothing)
        assert stats(p) == (0, 0, 0, 0)
        assert "command.issued" not in p.types()
        assert p.path() == ["each", "end"]


@pytest.mark.parametrize(("items", "size"), [({"a": 1}, 1), ("text", 1), ([1, 2], 2)])
def test_a_map_or_text_is_one_item(items: Any, size: int) -> None:
    assert stats(loop(items=items).run())[0] == size


def test_a_number_is_not_a_collection() -> None:
    p = Play(
        workflow(f"- {{step: each, loop: {{in: '{{{{ workload.n }}}}'}}, {PYTHON}}}"), {"n": 3}
    ).start()
    assert p.check().find_last(e.PlaybookFailed).error.code == "BAD_COLLECTION"


def test_sequential_has_one_command_in_flight_and_chunks_grow_with_speed() -> None:
    p = loop(items=1000)
    sizes = []
    while commands := p.list_ready():
        assert len(commands) == 1
        sizes.append(commands[0].count)
        p.chunk(commands[0], millis=1)
    assert sizes[0] == 1
    assert max(sizes) == 250, "what fills 250 ms at 1 ms an item"
    assert stats(p) == (1000, 1000, 0, 0)


def test_items_over_a_second_stay_alone() -> None:
    p = loop(items=5)
    while commands := p.list_ready():
        assert commands[0].count == 1
        p.chunk(commands[0], millis=1500)
    assert stats(p)[1] == 5


def test_the_window_bounds_items_that_run_at_once() -> None:
    p = loop("{mode: parallel, max_in_flight: 7, chunk: 1}", 100)
    while commands := p.list_ready():
        assert sum(c.together for c in commands) <= 7
        assert p.state.activations[commands[0].activation].loop.running <= 7
        p.chunk(commands[-1])
    assert stats(p) == (100, 100, 0, 0)


def test_a_wide_window_is_spread_over_a_bounded_number_of_commands() -> None:
    p = loop("{mode: parallel, max_in_flight: 1000, chunk: 50}", 90_000)
    assert len(p.list_ready()) == MAX_LOOP_COMMANDS
    assert sum(c.together for c in p.list_ready()) == MAX_LOOP_COMMANDS * 50, (
        "a chunk of 50 can run no more than 50 at once"
    )
    covered = sorted((c.first, c.count) for c in p.list_ready())
    assert covered[0] == (0, 50)
    assert all(a + n == b for (a, n), (b, _) in pairwise(covered))


@pytest.mark.parametrize(("window", "commands"), [(7, 7), (100, 100), (1000, MAX_ITEM_COMMANDS)])
def test_items_with_a_command_each_fill_the_window(window: int, commands: int) -> None:
    p = loop(f"{{mode: parallel, max_in_flight: {window}, chunk: 1}}", 2_000)
    assert len(p.list_ready()) == commands
    p.chunk(p.list_ready()[0])
    assert len(p.list_ready()) == commands, "the next item takes the place of the one that ended"


def test_reports_in_any_order_close_the_loop_once() -> None:
    p = loop("{mode: parallel, max_in_flight: 5, chunk: 1}", 20)
    reported = []
    while commands := p.list_ready():
        command = commands[len(reported) % len(commands)]
        p.chunk(command)
        reported.append(command)
        assert p.chunk(command) in (Refusal("stale"), Refusal("terminal")), "counted once"
    assert stats(p) == (20, 20, 0, 0)


def test_fail_fast_stops_the_others_and_what_did_not_run_is_skipped() -> None:
    p = loop("{mode: parallel, max_in_flight: 4, chunk: 5}", 100)
    first, *others = p.list_ready()
    p.chunk(first, failed=(2,))
    assert p.stops == {c.command_id for c in others}
    assert "loop.done" not in p.types(), "not before every command has stopped"
    p.finish_stops()
    assert stats(p) == (100, 2, 1, 97)
    done = p.find_last(e.LoopDone)
    assert done.result.error.code == "LOOP_FAILED"
    assert "item 2 is bad" in done.result.error.message
    assert p.path() == ["each", "bad"]


def test_failed_loop_is_routed_as_call_error() -> None:
    arc = "[{step: bad, when: \"{{ event.name == 'loop.done' }}\"}]"
    text = workflow(f"""
- step: each
  loop: {{in: [1, 2], iterator: x, spec: {{chunk: 1}}}}
  {PYTHON}
  next: {arc}
- {{step: bad}}
""")
    failing = Play(text).start()
    failing.chunk(failing.list_ready()[0], failed=(0,))
    assert failing.check().path() == ["each"]
    assert failing.find_last(e.PlaybookFailed).error.code == "LOOP_FAILED"
    assert failing.find_last(e.NextEvaluated).event == "call.error"
    well = Play(text).start()
    while commands := well.list_ready():
        well.chunk(commands[0])
    assert well.check().path() == ["each", "bad"]


def test_best_effort_goes_on_and_is_ok() -> None:
    p = loop("{mode: parallel, policy: {failure: best_effort}}", 50)
    while commands := p.list_ready():
        p.chunk(commands[0], failed=(3, 4, 30))
    assert stats(p) == (50, 47, 3, 0)
    assert p.path() == ["each", "end"]


@pytest.mark.parametrize(
    ("limit", "bad", "path"), [("5%", 5, "end"), ("5%", 6, "bad"), ("2", 2, "end"), ("2", 3, "bad")]
)
def test_max_failed_is_a_count_or_a_share(limit: str, bad: int, path: str) -> None:
    p = loop(f"{{mode: parallel, chunk: 1, policy: {{failure: {{max_failed: {limit}}}}}}}", 100)
    while commands := p.list_ready():
        p.chunk(commands[0], failed=tuple(range(bad)))
    p.finish_stops()
    assert p.path() == ["each", path]
    assert stats(p)[2] == bad


def test_reducers_fold_in_item_order_whatever_order_reports_come_in() -> None:
    text = "{mode: parallel, chunk: 1, reduce: {ctx.total: sum, ctx.names: append, ctx.last: last}}"
    p = loop(text, 6)
    for command in reversed(p.list_ready()):
        i = command.first
        p.chunk(command, partial={"ctx.total": i, "ctx.names": [f"n{i}"], "ctx.last": i})
    assert p.check().state.ctx == {"total": 15, "names": [f"n{i}" for i in range(6)], "last": 5}


def test_reductions_of_touching_ranges_are_joined() -> None:
    p = loop("{mode: parallel, max_in_flight: 4, chunk: 1, reduce: {ctx.total: sum}}", 400)
    held_back = p.list_ready()[0]
    while others := [c for c in p.list_ready() if c is not held_back]:
        p.chunk(others[0], partial={"ctx.total": 1})
        (activation,) = p.state.activations.values()
        assert len(activation.loop.segments) <= 4
    p.chunk(held_back, partial={"ctx.total": 1})
    assert p.check().state.ctx == {"total": 400}


def test_values_that_do_not_fit_their_reducer_fail_the_loop_not_the_log() -> None:
    p = loop("{mode: parallel, chunk: 1, reduce: {ctx.total: sum}}", 2)
    a, b = p.list_ready()
    p.chunk(a, partial={"ctx.total": 1})
    p.chunk(b, partial={"ctx.total": "text"})
    assert p.check().find_last(e.LoopDone).result.error.code == "REDUCE_FAILED"


def test_an_item_that_waits_long_for_its_retry_comes_back_alone() -> None:
    p = loop("{mode: parallel, max_in_flight: 2, chunk: 5}", 10)
    first, second = p.list_ready()
    items = e.Items(first=0, ok=4, deferred=(e.Deferred(3, 1, 30_000_000),))
    p.complete(first, [{}] * 4, items=items)
    p.chunk(second)
    assert not p.list_ready(), "not due yet"
    p.now += 30_000_000
    (again,) = p.list_ready()
    assert (again.first, again.count, again.attempts) == (3, 1, 1)
    p.chunk(again)
    assert stats(p) == (10, 10, 0, 0)


def test_progress_is_counted_once_and_a_new_attempt_goes_on_after_it() -> None:
    p = loop("{mode: parallel, chunk: 10}", 10)
    (command,) = p.list_ready()
    entry = e.CommandProgress(
        command_id=command.command_id,
        attempt=1,
        done=4,
        items=e.Items(first=0, ok=4, micros=4000),
        result=p.envelope(command, [{}] * 4),
    )
    p.report(command, entry)
    assert p.report(command, entry) == Refusal("known")
    p.tell(m.LeaseLost(command_id=command.command_id, attempt=1))
    (again,) = p.list_ready()
    assert again.journal.done == 4
    p.chunk(again)
    assert stats(p) == (10, 10, 0, 0)
    parts = [(x.first, x.count) for x in p.effects if isinstance(x, d.AddPart)]
    assert parts == [(0, 4), (4, 6)]


def test_a_dead_chunk_fails_its_unfinished_items() -> None:
    p = loop("{mode: parallel, chunk: 5, policy: {failure: best_effort}}", 10)
    victim = p.list_ready()[0].command_id
    for attempt in range(1, 6):
        p.tell(m.LeaseLost(command_id=victim, attempt=attempt))
    p.run()
    assert stats(p) == (10, 5, 5, 0)


def test_a_loop_over_data_is_planned_by_a_worker_and_runs_over_the_reference() -> None:
    p = Play(
        workflow(f"""
- {{step: load, {PYTHON}, next: each}}
- step: each
  loop: {{in: "{{{{ load.rows }}}}", iterator: row, spec: {{mode: parallel}}}}
  {PYTHON}
""")
    ).start()
    command = p.command("load")
    selection = p.fixed.plan.steps["load"].selections[0]
    context = {"selections": {selection.id: {"reference": "noetl://execution/7/result/load/k"}}}
    result = Envelope(status="ok", context=context)
    p.report(command, e.CommandCompleted(command_id=command.command_id, attempt=1, result=result))
    asked = p.command("each")
    assert asked.kind == "plan"
    rows = Reference(
        ref_id=RefId("9"), type="memory", uri="noetl://execution/7/collection/each/k", rows=3
    )
    planned = e.Collection(kind="reference", size=3, reference=rows)
    p.report(
        asked,
        e.ExpressionEvaluated(
            command_id=asked.command_id,
            attempt=1,
            step="each",
            activation=asked.activation,
            site="in",
            plan=planned,
        ),
    )
    assert all(c.collection == planned and not c.items for c in p.list_ready())
    assert stats(p.run()) == (3, 3, 0, 0)


@pytest.mark.parametrize("source", ["load.rows", "ctx.rows"])
def test_a_loop_over_a_stored_list_starts_at_once_and_its_items_stay_in_the_store(
    source: str,
) -> None:
    p = Play(
        workflow(f"""
- {{step: load, {PYTHON}, set: {{ctx.rows: "{{{{ load.rows }}}}"}}, next: each}}
- {{step: each, loop: {{in: "{{{{ {source} }}}}"}}, {PYTHON}}}
""")
    ).start()
    p.complete(p.command("load"), {"rows": [{"secret": "x"}, {"secret": "y"}]})
    collection = p.find_last(e.LoopStarted).collection
    assert (collection.kind, collection.size, collection.items) == ("reference", 2, ())
    assert collection.reference is not None
    assert (p.command("each").collection, p.command("each").items) == (collection, ())
    assert stats(p.run()) == (2, 2, 0, 0)
    assert "secret" not in str(p.log)


def test_items_that_the_server_computes_from_literals_and_scalars_stand_in_loop_started() -> None:
    p = Play(
        workflow(f"""
- {{step: a, {PYTHON}, set: {{ctx.names: [x, y], ctx.n: "{{{{ result.n }}}}"}}, next: each}}
- {{step: each, loop: {{in: "{{{{ ctx.names + [ctx.n] }}}}"}}, {PYTHON}}}
""")
    ).start()
    p.complete(p.command("a"), {"n": 3})
    assert p.find_last(e.LoopStarted).collection.items == ("x", "y", 3)
    assert p.command("each").items == ("x",)
    assert stats(p.run()) == (3, 3, 0, 0)


def test_a_selection_and_a_plan_with_items_of_an_older_worker_still_run() -> None:
    p = Play(
        workflow(f"""
- {{step: load, {PYTHON}, next: each}}
- step: each
  loop: {{in: "{{{{ load.rows }}}}", iterator: row, spec: {{mode: parallel}}}}
  {PYTHON}
""")
    ).start()
    command = p.command("load")
    selection = p.fixed.plan.steps["load"].selections[0]
    context = {"selections": {selection.id: {"value": [{"secret": 1}, {"secret": 2}]}}}
    result = Envelope(status="ok", context=context)
    p.report(command, e.CommandCompleted(command_id=command.command_id, attempt=1, result=result))
    assert "secret" not in str(p.log), "the server takes out what an older worker reports"
    asked = p.command("each")
    assert asked.kind == "plan"
    planned = e.Collection(kind="inline", size=2, items=({"secret": 1}, {"secret": 2}))
    p.report(
        asked,
        e.ExpressionEvaluated(
            command_id=asked.command_id,
            attempt=1,
            step="each",
            activation=asked.activation,
            site="in",
            plan=planned,
        ),
    )
    assert p.list_ready()[0].items == ({"secret": 1},)
    assert stats(p.run()) == (2, 2, 0, 0)


def make_gathered(number: int) -> Reference:
    uri = f"noetl://execution/7/result/each/k-{number}-gathered"
    return Reference(ref_id=RefId(f"g{number}"), type="memory", uri=uri)


def test_what_items_gather_is_joined_by_a_worker_before_the_loop_is_done() -> None:
    p = loop(
        "{mode: parallel, chunk: 1, reduce: {ctx.total: sum, ctx.seen: append, ctx.none: merge}}", 2
    )
    for command in reversed(p.list_ready()):
        p.chunk(
            command, partial={"ctx.total": command.first}, gathered=make_gathered(command.first)
        )
    assert not [event for event in p.log if isinstance(event, e.LoopDone)]
    asked = p.command("each")
    assert (asked.kind, asked.site) == ("evaluate", "reduce")
    assert asked.site_args == {"segments": [[0, {"ctx.total": 1}]]}
    parts = [
        effect
        for effect in p.effects
        if isinstance(effect, d.AddPart) and effect.manifest != asked.activation
    ]
    assert {(part.first, part.reference.ref_id) for part in parts} == {(0, "g0"), (1, "g1")}
    seen = Reference(
        ref_id=RefId("s"), type="memory", uri="noetl://execution/7/result/each/s", rows=2
    )
    p.report_evaluated(asked, NOT_WRITTEN, Selected(stored=seen), Selected(value=1))
    assert p.check().state.ctx == {"seen": make_link(seen), "total": 1}
    assert stats(p) == (2, 2, 0, 0)


def test_what_a_failed_loop_has_gathered_is_not_joined() -> None:
    p = loop("{mode: parallel, chunk: 1, reduce: {ctx.seen: append}}", 2)
    p.chunk(p.list_ready()[0], gathered=make_gathered(0))
    p.chunk(p.list_ready()[0], failed=(1,))
    assert stats(p)[2] == 1
    assert p.check().state.ctx == {}


def test_a_reduction_that_a_worker_cannot_join_fails_the_loop() -> None:
    p = loop("{mode: parallel, chunk: 1, reduce: {ctx.seen: merge}}", 1)
    p.chunk(p.list_ready()[0], gathered=make_gathered(0))
    p.report_evaluated(
        p.command("each"), Selected(error="ctx.seen: merge cannot join a list and a map")
    )
    assert p.find_last(e.LoopDone).result.error.message.endswith(
        "merge cannot join a list and a map"
    )


def test_re_entry_by_a_cycle_is_a_new_epoch() -> None:
    p = (
        Play(
            workflow(f"""
- {{step: each, loop: {{in: [1, 2]}}, {PYTHON}, next: check}}
- step: check
  set: {{ctx.n: "{{{{ ctx.n | default(0) + 1 }}}}"}}
  next: [{{step: each, when: "{{{{ ctx.n < 3 }}}}"}}]
""")
        )
        .start()
        .run()
    )
    epochs = [event.activation for event in p.check().log if isinstance(event, e.LoopDone)]
    assert len(epochs) == len(set(epochs)) == 3


def test_cursor_lanes_claim_until_a_claim_is_empty() -> None:
    p = Play(
        workflow(
            f"""
- step: each
  loop:
    iterator: row
    cursor: {{kind: postgres, auth: pg, claim: "select 1"}}
    spec: {{mode: cursor, max_in_flight: 2, frame: 10}}
  {PYTHON}
""",
            keychain=[{"name": "pg", "kind": "credential", "credential": "pg_main"}],
        )
    ).start()
    left = 25
    while commands := p.list_ready():
        assert len(commands) <= 2
        claimed = min(10, left)
        left -= claimed
        items = e.Items(first=commands[0].first, ok=claimed, claimed=claimed)
        p.complete(commands[0], [{}] * claimed, items=items)
    assert stats(p) == (25, 25, 0, 0)


def test_a_claim_that_fails_fails_the_loop() -> None:
    p = Play(
        workflow(f"""
- step: each
  loop:
    cursor: {{kind: postgres, claim: "select 1"}}
    spec: {{mode: cursor, policy: {{failure: best_effort}}}}
  {PYTHON}
""")
    ).start()
    p.fail(p.command("each"))
    assert p.check().find_last(e.LoopDone).result.error.code == "BROKEN"
    assert stats(p) == (0, 0, 0, 0)


def test_a_loop_on_spark_is_one_command() -> None:
    p = loop("{policy: {exec: spark}}", 5000)
    (command,) = p.list_ready()
    assert (command.first, command.count, command.pool) == (0, 5000, "spark")
    p.chunk(command)
    assert stats(p)[1] == 5000


def test_partitions_on_spark_tell_once_and_the_report_counts() -> None:
    p = loop("{policy: {exec: spark, failure: best_effort}}", 30)
    (command,) = p.list_ready()

    def make_shard_done(number: int) -> e.LoopShardDone:
        items = e.Items(first=number * 10, ok=10)
        return e.LoopShardDone(
            command_id=command.command_id, attempt=command.attempt, shard=number, items=items
        )

    p.report(command, make_shard_done(0))
    assert p.report(command, make_shard_done(0)) == Refusal("known")
    p.report(command, make_shard_done(2))
    (activation,) = p.state.activations.values()
    assert activation.loop is not None
    assert (activation.loop.ok, activation.loop.ahead) == (0, 20)
    p.chunk(
        command, failed=(3,)
    )  # another attempt may have found it otherwise: what it stored is what counts
    assert stats(p) == (30, 29, 1, 0)
    assert p.find_last(e.LoopFaninCompleted).shards == 2
    assert p.types().index("loop.done") == p.types().index("loop.fanin.completed") + 1


def test_children_in_a_loop_never_share_a_command() -> None:
    p = Play(
        workflow("""
- step: each
  loop: {in: "{{ workload['items'] }}", spec: {mode: parallel, max_in_flight: 3}}
  tool: {kind: playbook, path: other}
"""),
        {"items": list(range(9))},
    ).start()
    for command in p.list_ready():
        assert command.count == 1
        p.chunk(command, millis=0.01)
    assert all(c.count == 1 for c in p.list_ready())


def test_a_child_that_ends_after_its_loop_has_failed_wakes_nobody() -> None:
    """The command that waited for it was cancelled with the loop: it cannot be queued again."""
    p = Play(
        workflow("""
- step: each
  loop: {in: [1, 2], spec: {mode: parallel}}
  tool: {kind: playbook, path: other}
"""),
    ).start()
    for command in p.list_ready():
        request = e.ChildRequest(path="other")
        fields: Any = {
            "command_id": command.command_id,
            "attempt": command.attempt,
            "task": "task_0",
        }
        p.report(command, e.CommandParked(reason="child", child=request, **fields))
    ends = [
        e.ChildEnded(
            call=asked.parent.call,
            child=None,
            result=make_failed_envelope(Failure(code="NOT_FOUND", message="")),
        )
        for asked in p.children
    ]
    p.tell(m.Notice(event=ends[0]))
    p.chunk(p.command("each"), failed=(0,))
    p.tell(m.Notice(event=ends[1]))
    assert not p.list_ready()
    p.finish_stops()
    assert stats(p) == (2, 0, 1, 1)
    assert p.state.status == "failed"


def test_the_state_of_a_large_loop_stays_small() -> None:
    p = loop("{mode: parallel, max_in_flight: 100}", 90_000)
    largest = 0
    while commands := p.list_ready():
        largest = max(largest, len(encode_execution(p.state)))
        p.chunk(commands[0], millis=0.05)
    assert stats(p)[1] == 90_000
    assert largest < 64 * 1024


def test_a_collection_too_large_to_look_at_is_planned_by_a_worker() -> None:
    assert loop(items=150_000).list_ready()[0].kind == "plan"


def test_an_evaluation_after_the_loop_is_not_one_of_its_commands() -> None:
    p = Play(
        workflow(f"""
- step: each
  spec: {{timeout: 10s}}
  loop: {{in: [1, 2]}}
  {PYTHON}
  next: [{{step: end, when: "{{{{ each.rows[0].n > 1 and output.status == 'error' }}}}"}}]
- {{step: end}}
""")
    ).start()
    p.fire()
    p.finish_stops()
    asked = p.command("each")
    assert asked.kind == "evaluate", "no worker holds the results of a whole loop"
    p.tell(m.LeaseLost(command_id=asked.command_id, attempt=1))
    p.report_evaluated(p.command("each"), True)
    assert stats(p) == (2, 0, 0, 2)
    assert p.path() == ["each", "end"]


def test_a_chunk_carries_its_own_items_and_not_the_whole_collection() -> None:
    p = loop("{mode: parallel}", items=1_000)
    assert {len(command.items) for command in p.list_ready()} == {1}
    assert all(command.scope.workload == {} for command in p.list_ready())


# ---- items that are alone ----------------------------------------------------------------------------------------------

BACK = "{policy: {rules: [{when: '{{ output.status == 1 }}', then: {do: jump, to: %s}}]}}"


@pytest.mark.parametrize(
    ("tasks", "alone"),
    [
        ("[{name: a, kind: http, url: 'http://x'}, {name: b, kind: noop}]", False),
        ("[{name: a, kind: noop}, {name: b, kind: wait, duration: 3s}]", True),
        (f"[{{name: a, kind: noop}}, {{name: b, kind: noop, spec: {BACK % 'a'}}}]", True),
        (f"[{{name: a, kind: noop}}, {{name: b, kind: noop, spec: {BACK % 'previous'}}}]", True),
        (f"[{{name: a, kind: noop, spec: {BACK % 'b'}}}, {{name: b, kind: noop}}]", False),
        (
            "[{name: a, kind: http, url: 'http://x', spec: {paginate: {when: '{{ response.more }}'}}}]",
            False,
        ),
        (
            "[{name: a, kind: http, url: 'http://x', spec: {paginate: {when: '{{ response.more }}', delay: 1s}}}]",
            True,
        ),
    ],
)
def test_items_that_wait_or_go_back_fill_the_window_each_in_a_command_of_its_own(
    tasks: str, alone: bool
) -> None:
    loop = "{in: '{{ range(90) }}', spec: {mode: parallel, max_in_flight: 40, chunk: 2}}"
    text = f"- {{step: each, loop: {loop}, tool: {tasks}}}"
    p = Play(workflow(text)).start()
    assert [(c.count, c.together) for c in p.list_ready()] == (
        [(1, 1)] * 40 if alone else [(2, 2)] * MAX_LOOP_COMMANDS
    )


@pytest.mark.parametrize("where", ["", "exec: spark, "])
def test_loop_that_fails_at_the_end_runs_every_item_first(where: str) -> None:
    p = loop(f"{{mode: parallel, chunk: 1, policy: {{{where}failure: at_end}}}}", 6)
    while commands := p.list_ready():
        failed = tuple(
            index
            for index in (1, 4)
            if commands[0].first <= index < commands[0].first + commands[0].count
        )
        assert not commands[0].stop_on_failure
        p.chunk(commands[0], failed=failed)
    assert stats(p) == (6, 4, 2, 0)
    assert p.check().find_last(e.LoopDone).result.error.code == "LOOP_FAILED"


def test_cursor_loop_that_fails_at_the_end_claims_until_a_claim_is_empty() -> None:
    p = Play(
        workflow(f"""
- step: each
  loop:
    cursor: {{kind: postgres, claim: "select 1"}}
    spec: {{mode: cursor, policy: {{failure: at_end}}}}
  {PYTHON}
""")
    ).start()
    for items in (e.Items(ok=1, failed=1, claimed=2), e.Items(ok=2, claimed=2), e.Items(claimed=0)):
        p.complete(p.command("each"), [], items=items)
    assert stats(p) == (4, 3, 1, 0)
    assert p.check().find_last(e.LoopDone).result.error.code == "LOOP_FAILED"
