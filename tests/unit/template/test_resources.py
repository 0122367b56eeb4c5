"""No template takes much time or memory: more than a hundred that try are refused, or are done soon."""

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from noetl.template.errors import LimitError, TemplateError
from noetl.template.limits import (
    EVENT_LOOP_LIMITS,
    MAX_NATIVE_OPERATIONS,
    MEBIBYTE,
    SERVER_LIMITS,
    WORKER_LIMITS,
    Meter,
    RenderLimits,
)
from noetl.template.parsing import parse
from noetl.template.rendering import Renderer
from noetl.template.replay_functions import DerivedFunctions
from noetl.template.selections import cut_template
from tests.rendering import render
from tests.resource_payloads import PAYLOADS

FREEZE_S = 10.0  # of processor time; some payloads of this list took minutes before
SCOPE = {"a": [1], "x": 1}
FUNCTIONS = DerivedFunctions("seed", "2024-01-01T00:00:00Z")
ROWS = [
    {"id": n, "name": f"name {n}", "value": n / 4, "kind": f"k{n % 10}", "none": None}
    for n in range(100_000)
]


def test_there_are_more_than_a_hundred_payloads() -> None:
    assert len(set(PAYLOADS)) == len(PAYLOADS) > 100


def render_payload(number: int, limits: RenderLimits) -> None:
    with suppress(TemplateError):
        Renderer(limits, FUNCTIONS).render_value(PAYLOADS[number], SCOPE)


@pytest.mark.parametrize("number", range(len(PAYLOADS)))
def test_a_payload_is_refused_or_done_soon(number: int) -> None:
    began = time.process_time()
    for limits in (EVENT_LOOP_LIMITS, SERVER_LIMITS):
        render_payload(number, limits)
    assert time.process_time() - began < FREEZE_S


def list_payloads(one_in: int) -> list[Any]:
    """One in so many each time, and every one in the long tests."""
    return [
        pytest.param(number, marks=() if number % one_in == 0 else pytest.mark.long)
        for number in range(len(PAYLOADS))
    ]


# The limits of workers are ten times as wide as those of servers: so is the time until a refusal.
@pytest.mark.parametrize("number", list_payloads(one_in=5))
def test_a_payload_in_a_worker_is_refused_or_done_soon(number: int) -> None:
    began = time.process_time()
    render_payload(number, WORKER_LIMITS)
    assert time.process_time() - began < FREEZE_S


# Tracing takes ten times as long as rendering.
@pytest.mark.parametrize("number", list_payloads(one_in=25))
def test_a_payload_takes_little_memory(number: int) -> None:
    tracemalloc.start()
    try:
        render_payload(number, WORKER_LIMITS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < WORKER_LIMITS.memory + 32 * MEBIBYTE


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (PAYLOADS[0], "one operation"),
        ("{{ range(9000000) }}", "items"),
        ("{{ [" + "1," * 499_990 + "] }}", "10000 words"),
        ("{{ " + "9" * 5000 + " }}", "digits"),
        ("{% for i in range(1000000) %}{{ i }}{% endfor %}", "2000000 operations"),
        ("{{ 'x' * 300000000 }}", "characters"),
        ("{% set t = 'x' * 16000000 %}{{ t ~ 'a' }}{{ t ~ 'b' }}{{ t ~ 'c' }}", "bytes"),
    ],
)
def test_a_refusal_names_the_limit(template: str, words: str) -> None:
    with pytest.raises(LimitError) as caught:
        render(template, SCOPE, limits=WORKER_LIMITS)
    assert caught.value.code == "TEMPLATE_LIMIT"
    assert words in str(caught.value)
    assert caught.value.template == template


@pytest.mark.parametrize("number", range(0, len(PAYLOADS), 7))
def test_the_same_payload_costs_the_same_every_time(number: int) -> None:
    outcomes = []
    for _ in range(2):
        try:
            Renderer(SERVER_LIMITS, FUNCTIONS).render_value(PAYLOADS[number], SCOPE)
            outcomes.append("rendered")
        except TemplateError as error:
            outcomes.append(f"{error.code}: {error} at {error.line}")
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "template",
    [
        "{{ rows }}",
        "{{ rows | sum('value') }}",
        "{{ rows | map(attribute='id') | sum }}",
        "{{ rows | selectattr('value', 'gt', 3) | map(attribute='id') | list | length }}",
        "{{ rows | tojson }}",
        "all: {{ rows | tojson }}",
        "{{ rows | map(attribute='name') | join(',') }}",
        "{{ rows | sort(attribute='value', reverse=true) | first }}",
        "{{ rows | sort(attribute='name') | last }}",
        "{{ rows | groupby('kind') | map('first') | list }}",
        "{{ rows | unique(attribute='kind') | list | length }}",
        "{{ 'name 7' in (rows | map(attribute='name') | list) }}",
        "{{ rows == rows[:] }}",
        "{% for row in rows %}{{ row.id }},{{ row.name | upper }},{{ row.value * 2 }}\n{% endfor %}",
    ],
)
def test_a_hundred_thousand_rows_are_worked_on(template: str) -> None:
    assert render(template, {"rows": ROWS}, limits=WORKER_LIMITS) is not None


def test_a_call_of_c_is_bounded_by_itself() -> None:
    meter = Meter(WORKER_LIMITS)
    meter.spend_native(MAX_NATIVE_OPERATIONS)
    with pytest.raises(LimitError):
        meter.spend_native(MAX_NATIVE_OPERATIONS + 1)
    assert meter.operations == WORKER_LIMITS.operations - MAX_NATIVE_OPERATIONS


def list_deep_templates() -> Iterator[str]:
    yield "{{ [" + "fetch.a," * 1_500 + "x]" + "[0]" * 90 + " }}"
    yield "{{ " + "[" * 30 + "fetch.a, other.b, " * 900 + "]" * 30 + " }}"
    yield "{% if x %}" * 60 + "{{ fetch.a ~ x }}" * 1_000 + "{% endif %}" * 60


@pytest.mark.parametrize("template", list_deep_templates(), ids=range(3))
def test_compiling_and_cutting_look_at_each_node_a_few_times(template: str) -> None:
    began = time.process_time()
    parse(template)
    cut_template(template, own=None, steps=["fetch", "other"])
    assert time.process_time() - began < FREEZE_S / 4


def test_a_text_without_tags_may_be_long_on_the_event_loop() -> None:
    text = "x" * (EVENT_LOOP_LIMITS.source * 3)
    assert render(text, {}, limits=EVENT_LOOP_LIMITS) == text
    with pytest.raises(LimitError):
        render(text + "{{ 1 }}", {}, limits=EVENT_LOOP_LIMITS)


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ '  xyx '.strip() }}", "xyx"),
        ("{{ ('x' * 9000 ~ 'a' ~ 'y' * 9000).strip('xy') }}", "a"),
        ("{{ ('x' * 9000 ~ 'a').lstrip('x') }}", "a"),
        ("{{ ('a' ~ 'x' * 9000).rstrip('x') }}", "a"),
        ("{{ ('x' * 9000) | trim('x') }}", ""),
        ("{{ [1, [2, 3], 'a'].index([2, 3]) }}", 1),
        ("{{ ['a', 'b', 'a'].count('a') }}", 2),
        ("{{ {'a': [1]} in [{'a': [2]}, {'a': [1]}] }}", True),
        ("{{ ('y' * 300) in ['x' * 300, 'y' * 300] }}", True),
        ("{{ [2, 1, 2] | unique | list }}", [2, 1]),
    ],
)
def test_metered_functions_give_the_same_values(template: str, value: object) -> None:
    assert render(template, {}) == value


def test_integers_of_equal_hash_are_told_apart() -> None:
    scope = {"a": [n * (2**61 - 1) for n in range(3_000)] * 2}
    assert len(render("{{ a | unique | list }}", scope, limits=WORKER_LIMITS)) == 3_000
