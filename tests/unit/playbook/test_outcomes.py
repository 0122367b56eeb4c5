"""Which guards handle a failure: decided from their text."""

import pytest

from noetl.playbook.outcomes import mentions_facts_only, mentions_outcome
from noetl.playbook.plan import compile_plan
from noetl.playbook.validation import load


@pytest.mark.parametrize(
    "expression",
    [
        "output.status == 'error'",
        "output['status'] == 'error'",
        'output["status"] == "error"',
        "outcome.status != 'ok'",
        "output.get('status') == 'error'",
        "output | get('status') == 'error'",
        "(output | get('error', none)) is not none",
        "output.error is defined",
        "output.error.retryable",
        "output['error']['code'] == 'X'",
        "outcome.error.code == 'X'",
        "error is defined",
        "error",
        "not error",
        "error['code'] in ['A', 'B']",
        "event.name == 'call.error'",
        "event['name'] == 'call.error'",
        "load.status == 'error'",
        "load['error'] is defined",
        "workload.mode == 'full' and output.status == 'error'",
        "'x' if error is defined else 'y'",
        "[output.status] | first == 'error'",
        "{'a': error.code}.a == 'X'",
        "'error' == (output.status | lower)",
    ],
)
def test_guard_that_mentions_the_outcome_is_an_error_arc(expression: str) -> None:
    assert mentions_outcome(f"{{{{ {expression} }}}}", "load")


@pytest.mark.parametrize(
    "guard",
    [
        "{% if output.status == 'error' %}true{% endif %}",
        "{% set o = output %}{{ o.status == 'error' }}",
        "{% for x in [1] %}{{ error.code }}{% endfor %}",
        "{{ workload.a }}{{ error.code }}",
    ],
)
def test_guard_of_statements_that_mentions_the_outcome_is_an_error_arc(guard: str) -> None:
    assert mentions_outcome(guard, "load")


@pytest.mark.parametrize(
    "guard",
    [
        None,
        True,
        1,
        "true",
        "output.status == 'error'",  # plain text is no expression
        "{{ workload.mode == 'full' }}",
        "{{ ctx.has_more }}",
        "{{ output.data.status == 'done' }}",
        "{{ output.http.status == 404 }}",
        "{{ output }}",
        "{{ response.status == 'error' }}",
        "{{ event.step == 'load' }}",
        "{{ event.at }}",
        "{{ other.status == 'error' }}",
        "{{ load.rows | length > 3 }}",
        "{{ ctx.error }}",
        "{{ workload.error.code == 'X' }}",
        "{{ 'error' in ctx.words }}",
        "{{ execution.status == 'failed' }}",
        "{% set error = 1 %}{{ error }}",
    ],
)
def test_guard_that_does_not_mention_the_outcome_is_no_error_arc(guard: object) -> None:
    assert not mentions_outcome(guard, "load")


def test_plan_has_a_flag_per_arc() -> None:
    playbook = load(
        """
metadata: {name: x}
workflow:
  - step: load
    next:
      - {step: a, when: "{{ workload.full }}"}
      - {step: b, when: "{{ load.error.code == 'X' }}"}
      - {step: c, when: "{{ event.name == 'step.failed' }}"}
      - {step: d}
  - {step: a}
  - {step: b}
  - {step: c}
  - {step: d}
"""
    ).playbook
    assert playbook is not None
    assert compile_plan(playbook, "hash").steps["load"].error_arcs == {1, 2}


def test_guard_on_facts_of_the_call_is_noted() -> None:
    assert mentions_facts_only("{{ output.http.status == 404 }}", "load")
    assert not mentions_facts_only(
        "{{ output.status == 'error' and output.http.status == 404 }}", "load"
    )
    found = load(
        """
metadata: {name: x}
workflow:
  - step: load
    tool: {kind: http, url: "http://a"}
    next: [{step: a, when: "{{ output.http.status == 404 }}"}]
  - {step: a}
"""
    )
    assert [(finding.code, finding.severity, finding.line) for finding in found.findings] == [
        ("NOT_AN_ERROR_ARC", "note", 6)
    ]
