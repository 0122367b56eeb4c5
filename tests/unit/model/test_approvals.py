"""The question of an approval: scalars by name, within bounds, without secrets and rows."""

from typing import Any

import msgspec
import pytest

from noetl.model.approvals import MAX_QUESTION_BYTES, describe_question, make_question
from noetl.model.envelope import MAX_SCALAR_BYTES, is_scalar


@pytest.mark.parametrize("asked", [None, True, ""])
def test_an_approval_that_asks_nothing_has_no_question(asked: Any) -> None:
    assert make_question(asked) == {}


def test_a_text_is_the_message_and_fields_stay_as_they_are() -> None:
    assert make_question("Ship it?") == {"message": "Ship it?"}
    assert make_question(7) == {"message": 7}
    fields = {"who": "finance", "amount": 950.5, "urgent": True, "note": None}
    assert make_question(fields) == fields


def test_lists_and_maps_are_told_by_their_size() -> None:
    asked = {"rows": [{"name": "ada"}] * 3, "order": {"id": 1}}
    assert make_question(asked) == {"rows": "a list of 3", "order": "a map of 1"}


def test_fields_that_name_secrets_are_left_out() -> None:
    assert make_question({"who": "ada", "password": "p", "Authorization": "b"}) == {"who": "ada"}


@pytest.mark.parametrize("text", ["x" * 10_000, "ü" * 300, "\ud800" * 300])
def test_a_long_text_is_cut(text: str) -> None:
    (shown,) = make_question({"why": text}).values()
    assert is_scalar(shown)
    assert shown.endswith("…")
    assert len(shown.encode()) > MAX_SCALAR_BYTES - 8


def test_a_question_has_a_bound_and_says_what_is_missing() -> None:
    question = make_question({f"field {number}": "x" * 100 for number in range(50)})
    assert len(msgspec.json.encode(question)) < MAX_QUESTION_BYTES + 40
    assert question["…"] == f"{50 - (len(question) - 1)} more"


def test_a_question_is_told_in_one_line() -> None:
    question = {"amount": 950, "message": "Ship it?", "who": "finance"}
    assert describe_question(question) == "Ship it?, amount: 950, who: finance"
    assert describe_question({"message": "one\n\x1b[2Jtwo"}) == "one [2Jtwo"
    assert describe_question({}) == ""
