"""JSON before it is parsed, and errors as problems."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.model import errors
from noetl.playbook.validation import PlaybookInvalid
from noetl.server.executions.filters import parse_moment
from noetl.server.http import problems
from noetl.server.http.application import make_openapi
from noetl.server.http.bodies import MAX_JSON_DEPTH, decode_strict_json, measure_depth
from noetl.server.http.hint_routes import COMMAND_ROUTES
from noetl.server.http.loopback import is_loopback
from noetl.server.http.validation import InvalidRequest

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=20,
)


@given(VALUES)
def test_what_json_says_is_what_is_read(value: object) -> None:
    assert decode_strict_json(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"a": 1, "a": 2}', "a"),
        ('{"path": "p", "payload": {"rows": [{"id": 1}, {"id": 2, "n": 0, "id": 3}]}}', "id"),
        ('{"a": 1, "\\u0061": 2}', "a"),
        ('{"x": ":", "": {}, "": []}', ""),
    ],
)
def test_key_that_stands_twice_is_refused_by_name(text: str, key: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        decode_strict_json(text.encode())
    assert f"the key {key!r} stands twice" in raised.value.findings[0].message


@given(st.integers(1, 150), st.text(alphabet='[]{}"\\', max_size=80))
def test_depth_is_counted_outside_of_strings(levels: int, noise: str) -> None:
    data = (b"[" * levels) + json.dumps(noise).encode() + (b"]" * levels)
    opened = data.count(b"[") + data.count(b"{")
    assert measure_depth(data) == (
        0 if opened <= MAX_JSON_DEPTH else min(levels, MAX_JSON_DEPTH + 1)
    )
    if levels <= MAX_JSON_DEPTH:
        decode_strict_json(data)
    else:
        with pytest.raises(InvalidRequest):
            decode_strict_json(data)


def every(kind: type[errors.NoetlError]) -> list[type[errors.NoetlError]]:
    return [kind, *(found for below in kind.__subclasses__() for found in every(below))]


def test_every_error_of_the_tree_has_an_answer_and_a_code() -> None:
    expected = {"NOT_FOUND": 404, "CONFLICT": 409, "INVALID_INPUT": 422, "STORE_UNAVAILABLE": 503, "FENCED": 503,
                "OUTCOME_UNKNOWN": 503, "STALE_ATTEMPT": 409, "BAD_REFERENCE": 422, "CORRUPT_LOG": 500}  # fmt: skip
    named = [getattr(errors, name) for name in dir(errors) if name[0].isupper()]
    tree = [
        kind for kind in named if isinstance(kind, type) and issubclass(kind, errors.NoetlError)
    ]
    answers = {
        kind.code: problems.make_error_problem(kind("canary", hint="do this")) for kind in tree
    }
    assert {code: answers[code].status_code for code in expected} == expected
    told = json.loads(bytes(answers["CONFLICT"].body))
    assert (told["code"], told["detail"], told["hint"], told["status"]) == (
        "CONFLICT",
        "canary",
        "do this",
        409,
    )
    assert b"canary" not in bytes(answers["CORRUPT_LOG"].body)
    assert answers["STORE_UNAVAILABLE"].headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (None, []),
        ("try again", []),
        ("noetl exec list shows those there are", ["GET /api/executions"]),
        ("noetl catalog list shows what there is; noetl catalog register FILE adds one",
         ["GET /api/catalog", "POST /api/catalog/register"]),
        ("noetl exec explain 7 a-b says more; noetl exec retry 7 runs it again",
         ["GET /api/executions/7/explain/a-b", "POST /api/executions/7/retry"]),
        ("noetl exec rerun 7 makes it again; or noetl result pin keeps the next one",
         ["POST /api/executions/7/rerun", "POST /api/executions/{execution_id}/result/{step}/pin"]),
        ("use the format jsonl", ["GET /api/executions/{execution_id}/result/{step}/data?format=jsonl"]),
        ("noetl credential delete db, and add it again", ["DELETE /api/credentials/db"]),
    ],
)  # fmt: skip
def test_a_hint_that_names_commands_has_their_routes(hint: str | None, expected: list[str]) -> None:
    told = json.loads(bytes(problems.make_error_problem(errors.NotFound("x", hint=hint)).body))
    assert (told["hint"], told["routes"]) == (hint, expected)


def test_routes_of_commands_are_routes_of_the_server() -> None:
    there = [
        re.sub(r"{[^}]*}", "[^/]+", f"{verb.upper()} {path}")
        for path, verbs in make_openapi()["paths"].items()
        for verb in verbs
    ]
    for _, route in COMMAND_ROUTES:
        assert any(re.fullmatch(known, route.partition("?")[0]) for known in there), route


def test_findings_of_a_playbook_are_told_once() -> None:
    told = json.loads(bytes(problems.make_error_problem(PlaybookInvalid([])).body))
    assert (told["status"], told["findings"], told["detail"]) == (
        422,
        [],
        "the playbook has 0 error(s)",
    )


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"]
)
def test_loopback_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "localhost.example", "127.0.0.1.nip.io", "2130706433", "10.0.0.1"]
)
def test_other_names(host: str) -> None:
    assert not is_loopback(host)


def test_times_without_a_zone_are_utc() -> None:
    assert (
        parse_moment("since", "2026-01-02T03:04:05.000006Z", 0)
        == parse_moment("since", "2026-01-02T03:04:05.000006", 0)
        == 1767323045000006
    )
    assert parse_moment("since", "2026-01-02T04:04:05.000006+01:00", 0) == 1767323045000006


def test_a_duration_is_so_long_ago() -> None:
    assert parse_moment("since", "1d", 100_000_000_000) == 100_000_000_000 - 86_400_000_000


@pytest.mark.parametrize("text", ['"\\u0000"', '{"a\\u0000": 1}', '"\\\\\\u0000"'])
def test_nul_characters_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_strict_json(text.encode())


def test_a_backslash_before_u0000_is_only_a_backslash() -> None:
    assert decode_strict_json(b'"\\\\u0000"') == "\\u0000"


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 123456789012345678901234567890])
def test_an_integer_that_64_bits_do_not_hold_is_refused(number: int) -> None:
    with pytest.raises(InvalidRequest, match="does not fit into 64 bits"):
        decode_strict_json(b'{"v": %d}' % number)


@pytest.mark.parametrize(
    "value", [2**64 - 1, -(2**63), "123456789012345678901234567890", 1234567890123456789.5]
)
def test_a_value_beside_that_limit_is_taken_as_it_is(value: int | str | float) -> None:
    assert decode_strict_json(json.dumps({"v": value}).encode()) == {"v": value}
