import pytest

from noetl.model.errors import BadReference
from noetl.model.ids import CommandId
from noetl.model.reference import (
    PayloadOrigin,
    make_address,
    make_result_key,
    parse_result_key,
    parse_uri,
)


def test_an_address_is_written_and_read() -> None:
    made = make_address("42", "result", "load", "abc-1-fetch")
    assert str(made) == "noetl://execution/42/result/load/abc-1-fetch"
    assert parse_uri(str(made)) == made


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "noetl://",
        "noetl://execution/42/result/load",
        "noetl://execution/42/result/load/key/more",
        "noetl://execution/42/result/../key",
        "noetl://execution/42/result/load/..",
        "noetl://execution/42/result/load/a..b",
        "noetl://execution/42/result//key",
        "noetl://execution/42/result/load/",
        "noetl://execution/42/secrets/load/key",
        "noetl://execution/-1/result/load/key",
        "noetl://execution/0/result/load/key",
        "noetl://execution/042/result/load/key",
        "noetl://execution/9223372036854775808/result/load/key",
        "noetl://execution/４２/result/load/key",
        "noetl://execution/42/result/load/key\n",
        "noetl://execution/42/result/load/k%2e%2e",
        "noetl://execution/42/result/.hidden/key",
        "noetl://host/execution/42/result/load/key",
        "file://execution/42/result/load/key",
        "NOETL://execution/42/result/load/key",
        "https://example.org/42",
    ],
)
def test_what_is_not_ours_is_refused(uri: str) -> None:
    with pytest.raises(BadReference) as refused:
        parse_uri(uri)
    assert refused.value.hint


def test_a_result_key_names_who_made_it() -> None:
    assert make_result_key("c0ffee", 2, "fetch") == "c0ffee-2-fetch"
    assert make_result_key("c0ffee", 2, "fetch", 7) == "c0ffee-2-fetch-7"
    assert make_result_key("c0ffee", 2, "fetch") != make_result_key("c0ffee", 3, "fetch")


def test_a_key_says_who_made_the_payload() -> None:
    assert parse_result_key("c0ffee-2-fetch") == PayloadOrigin(CommandId("c0ffee"), 2, "fetch")
    assert parse_result_key("c0ffee-2-fetch.r3.t2.p7-l2") == PayloadOrigin(
        CommandId("c0ffee"), 2, "fetch", 3, 7
    )
    assert parse_result_key("c0ffee-1-set1.v0") == PayloadOrigin(CommandId("c0ffee"), 1, "set1.v0")
    assert parse_result_key("k") is None
