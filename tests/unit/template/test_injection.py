"""Template injection: every attempt gets an error or plain data of its own scope."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noetl.template.errors import TemplateError
from noetl.template.replay_functions import DerivedFunctions
from tests.rendering import evaluate_guard, render, render_marked, render_value

PAYLOADS = (
    (Path(__file__).parent / "injections.txt")
    .read_text(encoding="utf-8")
    .removesuffix("\n")
    .split("\n")
)
SCOPE: dict[str, Any] = {
    "workload": {"base": "http://x", "limit": 3, "evil": "{{ ''.__class__ }}"},
    "ctx": {"name": "Ann", "n": 3, "list": [1, 2], "items": [1]},
    "fetch": {"items": [{"id": 1, "tag": "a"}, {"id": 2, "tag": "b"}], "row_count": 2},
    "iter": {"index": 0, "row": {"id": 1}},
    "execution_id": "123",
    "output": {"status": "ok", "data": {"x": 1}},
}
LEAKS = re.compile(
    r"<(class|function|bound|built|module|generator|Undefined|Template|jinja)|object at 0x|root:x:|\buid=\d",
    re.I,
)


def assert_harmless(payload: str, value: object) -> None:
    stack = [value]
    texts = []
    while stack:
        part = stack.pop()
        assert type(part) in (str, int, float, bool, type(None), list, dict), payload
        if isinstance(part, dict):
            stack += [*part.keys(), *part.values()]
        elif isinstance(part, list):
            stack += part
        else:
            texts.append(str(part))
    written = "\n".join(texts)
    assert not LEAKS.search(written), payload
    for name, secret in os.environ.items():
        assert len(secret) < 8 or secret in payload or secret not in written, (payload, name)


def _outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except TemplateError as exc:
        return str(exc)  # shown to the author, so it must be harmless too


def test_there_are_enough_distinct_payloads() -> None:
    assert len(PAYLOADS) == len(set(PAYLOADS)) >= 300


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_payload_is_refused_or_harmless(payload: str) -> None:
    before = copy.deepcopy(SCOPE)
    functions = DerivedFunctions("s", "2024-01-01T00:00:00Z")
    for run in (
        lambda: render(payload, SCOPE, functions=functions),
        lambda: render("text " + payload, SCOPE, functions=functions),
        lambda: render_value({"k": [payload], payload: 1}, SCOPE, functions=functions),
        lambda: evaluate_guard(payload, SCOPE, functions=functions),
        lambda: [mark.value for mark in render_marked(payload, SCOPE, functions=functions)[1]],
    ):
        assert_harmless(payload, _outcome(run))
    assert before == SCOPE


def test_data_is_never_rendered_again() -> None:
    assert render("{{ workload.evil }}", SCOPE) == "{{ ''.__class__ }}"
    assert render("x {{ workload.evil }}", SCOPE) == "x {{ ''.__class__ }}"
