"""The paginator: collecting, cursors, resuming, polling."""

from typing import Any

import pytest

from noetl.model import events as e
from noetl.model.decisions import AddPart
from noetl.model.ids import call_id
from noetl.pipeline.task import pages
from noetl.playbook.assignments import is_reference
from noetl.playbook.plan import Plan
from noetl.tools.port import Call, Success
from tests.unit.pipeline.bench import Bench, Scripted, failing, plan_of, resume_journal

MORE = "{{ response.next is not none }}"


def plan_paging(paginate: str, more: str = "") -> Plan:
    spec = "{paginate: {" + paginate + "}" + more + "}"
    return plan_of(
        f"- step: s\n  tool: {{kind: python, code: x, input: {{page: 1, keep: k}}, spec: {spec}}}\n"
    )


def answers(most: int) -> Any:
    def answer(call: Call) -> Any:
        page = call.input["page"]
        value = {
            "data": {"items": [page * 10, page * 10 + 1], "next": page + 1 if page < most else None}
        }
        return Success(value, {"http": {"status": 200}})

    return answer


PAGES = f'when: "{MORE}", next_call: {{input: {{page: "{{{{ response.next }}}}"}}}}, collect: {{path: data.items}}'


def test_pages_are_collected_and_journaled_but_the_last() -> None:
    bench = Bench(answers(3))
    report = bench.run(plan_paging(PAGES))
    assert bench.value(report.result) == {"data": [10, 11, 20, 21, 30, 31]}
    assert [(page.page, page.cursor["input"]) for page in bench.of(e.CallPage)] == [
        (1, {"page": 2}),
        (2, {"page": 3}),
    ]
    assert [call.input for call in bench.tool.calls][-1] == {"page": 3, "keep": "k"}
    assert len({call.key for call in bench.tool.calls}) == 3
    assert report.result.context["http"] == {"status": 200}


def test_a_new_attempt_makes_the_next_call_and_keeps_what_was_collected() -> None:
    first = Bench(answers(3))
    first.run(plan_paging(PAGES))
    second = Bench(answers(3), store=first.store)
    manifest = call_id("c0ffee", "task_0", 1)
    second.parts[manifest] = [
        AddPart(manifest, page.page, 1, page.result.reference) for page in first.of(e.CallPage)
    ]
    report = second.run(plan_paging(PAGES), attempt=2, journal=resume_journal(first.journal))
    assert [call.input["page"] for call in second.tool.calls] == [3]
    assert second.value(report.result) == {"data": [10, 11, 20, 21, 30, 31]}


def test_max_attempts_counts_calls() -> None:
    bench = Bench(answers(9))
    report = bench.run(plan_paging(PAGES + ", max_attempts: 2"))
    assert len(bench.tool.calls) == 2
    assert bench.value(report.result) == {"data": [10, 11, 20, 21]}


def test_pages_that_nobody_bounded_and_polls_that_do_not_end_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "DEFAULT_MAX_CALLS", 4)
    endless = Bench(answers(9)).run(plan_paging(PAGES))
    assert isinstance(endless, e.CommandFailed)
    assert endless.result.error is not None
    assert endless.result.error.code == "PAGES_EXCEEDED"
    poll = 'when: "{{ response.more }}", max_attempts: 3'
    bench = Bench(lambda call: {"more": True})
    waiting = bench.run(plan_paging(poll))
    assert isinstance(waiting, e.CommandFailed)
    assert waiting.result.error is not None
    assert (waiting.result.error.code, len(bench.tool.calls)) == ("PAGES_EXCEEDED", 3)


def test_the_lists_and_long_texts_of_a_cursor_are_stored_and_read_again() -> None:
    page, ids, token = "{{ response.next }}", "{{ response.data['items'] }}", "{{ 'x' * 300 }}"
    following = (
        f'next_call: {{input: {{page: "{page}", body: {{ids: "{ids}", token: "{token}"}}}}}}'
    )
    how = f'when: "{MORE}", {following}, collect: {{path: data.items}}'
    bench = Bench(answers(2))
    bench.run(plan_paging(how))
    [entry] = bench.of(e.CallPage)
    body = entry.cursor["input"]["body"]
    assert entry.cursor["input"]["page"] == 2
    assert {name: bench.follow_link(part) for name, part in body.items()} == {
        "ids": [10, 11],
        "token": "x" * 300,
    }
    assert all(map(is_reference, body.values()))
    manifest = call_id("c0ffee", "task_0", 1)
    bench.parts[manifest] = [AddPart(manifest, 1, 1, entry.result.reference)]
    again = Bench(answers(2), store=bench.store, parts=bench.parts)
    again.run(plan_paging(how), attempt=2, journal=resume_journal([entry]))
    assert again.tool.calls[0].input["body"] == {"ids": [10, 11], "token": "x" * 300}


def test_a_cursor_that_looks_like_a_link_names_no_stored_value() -> None:
    how = f'when: "{MORE}", next_call: {{input: {{page: "{{{{ response.next }}}}", body: {{$reference: "noetl://x"}}}}}}'
    bench = Bench(answers(2))
    bench.run(plan_paging(how))
    [entry] = bench.of(e.CallPage)
    again = Bench(answers(2), store=bench.store)
    again.run(plan_paging(how), attempt=2, journal=resume_journal([entry]))
    assert again.tool.calls[0].input["body"] == {"$reference": "noetl://x"}


def test_a_failed_page_is_tried_again_where_it_was() -> None:
    def flaky(call: Call) -> Any:
        return (
            failing()
            if call.input["page"] == 2 and call.identity.attempt == 1
            else answers(2)(call)
        )

    policy = ", policy: {rules: [{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 2}}]}"
    bench = Bench(flaky)
    report = bench.run(plan_paging(PAGES, policy))
    assert bench.value(report.result) == {"data": [10, 11, 20, 21]}
    assert [call.input["page"] for call in bench.tool.calls] == [1, 2, 2]
    [retry] = bench.of(e.RetryStarted)
    assert (retry.page, retry.tries) == (1, 1)


def test_a_poll_asks_the_same_again_and_keeps_the_last_answer() -> None:
    states = iter(["pending", "pending", "done"])
    bench = Bench(lambda call: {"state": next(states)})
    report = bench.run(plan_paging("when: \"{{ response.state == 'pending' }}\", delay: 2s"))
    assert bench.value(report.result) == {"state": "done"}


def test_a_slow_poll_holds_no_worker() -> None:
    bench = Bench(lambda call: {"state": "pending"})
    parked = bench.run(plan_paging("when: \"{{ response.state == 'pending' }}\", delay: 30s"))
    assert (parked.reason, parked.delay, parked.tries) == ("retry", 30_000_000, 0)
    assert len(bench.of(e.CallPage)) == 1


def test_every_page_is_given_to_the_sink_with_its_own_key() -> None:
    sink = Scripted(lambda call: None, kind="sink", raw=frozenset())
    bench = Bench(answers(2), more=[sink])
    bench.run(
        plan_paging(
            PAGES + ', sink: {target: {kind: postgres, table: t}, data: "{{ response.items }}"}'
        )
    )
    assert [call.config["data"] for call in sink.calls] == [[10, 11], [20, 21]]
    assert len({call.key for call in sink.calls}) == 2


def test_strategies() -> None:
    for strategy, expected in (("replace", [30, 31]), ("extend", [10, 11, 20, 21, 30, 31])):
        bench = Bench(answers(3))
        report = bench.run(
            plan_paging(
                PAGES.replace(
                    "{path: data.items}", f"{{path: data.items, strategy: {strategy}, into: all}}"
                )
            )
        )
        assert bench.value(report.result)["data"] == expected
        assert bench.read_assigned(report) == {"ctx.all": expected}


def test_a_page_knows_the_address_that_the_task_has_and_whom_it_trusts() -> None:
    next_call = '{url: "{{ response.next }}", trusted_origins: ["{{ response.next }}"]}'
    plan = plan_of(
        "- step: s\n  tool: {kind: http, url: 'https://api.example/1', trusted_origins: ['https://b.example'], "
        f"spec: {{paginate: {{when: '{{{{ response.next is not none }}}}', next_call: {next_call}}}}}}}\n"
    )

    def answer(call: Call) -> Any:
        is_first = call.config["url"] == "https://api.example/1"
        return Success({"next": "https://evil.example/2" if is_first else None})

    http = Scripted(answer, kind="http", raw=frozenset())
    Bench(more=[http]).run(plan)
    first, second = http.calls
    assert (first.first_url, second.first_url) == (None, "https://api.example/1")
    assert second.config["url"] == "https://evil.example/2"
    assert second.config["trusted_origins"] == ["https://b.example"]
