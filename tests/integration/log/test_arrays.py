"""Columns go to Postgres as the text of arrays, and come back as they were."""

from typing import Any

import pytest

from noetl.database import connect
from noetl.log.arrays import numbers, texts


@pytest.mark.parametrize(
    ("written", "kind", "values"),
    [
        (numbers, "bigint", []),
        (numbers, "bigint", [1, None, -(2**63)]),
        (texts, "text", []),
        (texts, "text", [None]),
        (texts, "text", ["", None, "null", "NULL", "None", "{}", ",", " a ", '"', "\\", '\\"', '","', "ü\n\t"]),
        (texts, "text", ["\x1f", None, 'a\x1e"b', "\x1e", '"\x1e"']),
        (texts, "text", ['{"a":"\\u0000 \\" \\\\ \\n"}', None, "x" * 100_000]),
    ],
)
async def test_an_array_comes_back_as_it_was(migrated: str, written: Any, kind: str, values: list[Any]) -> None:
    connection = await connect(migrated)
    assert await connection.fetchval(f"select $1::text::{kind}[]", written(values)) == values
    await connection.close()
