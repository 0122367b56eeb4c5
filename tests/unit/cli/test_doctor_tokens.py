"""What `noetl doctor` says of tokens."""

from datetime import UTC, datetime
from typing import Any

import pytest

from noetl.cli.doctor import judge_tokens

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make_row(expires_at: str | None, valid: bool = True) -> dict[str, Any]:
    return {"name": "ci", "valid": valid, "expires_at": expires_at}


@pytest.mark.parametrize(
    ("rows", "status", "words"),
    [
        ([], "ok", "0 valid, 0 expired or revoked"),
        ([make_row(None), make_row(None, valid=False)], "ok", "1 valid, 1 expired or revoked"),
        ([make_row("2026-01-09T00:00:00.000000Z")], "ok", "1 valid"),
        ([make_row("2026-01-07T00:00:00.000000Z")], "warn", "within a week expires: ci"),
        ([make_row("2025-12-01T00:00:00.000000Z", valid=False)], "ok", "0 valid"),
    ],
)
def test_tokens_that_expire_soon_are_named(
    rows: list[dict[str, Any]], status: str, words: str
) -> None:
    found = judge_tokens(rows, NOW)
    assert (found.status, words in found.message) == (status, True), found
