"""Columns go to Postgres as the text of arrays, and come back as they were."""

from typing import Any

import pytest

from noetl.postgres.arrays import format_documents, format_numbers, format_texts
from noetl.postgres.pool import connect


@pytest.mark.parametrize(
    ("written", "kind", "values"),
    [
        (format_numbers, "bigint", []),
        (format_numbers, "bigint", [1, None, -(2**63)]),
        (format_texts, "text", []),
        (format_texts, "text", [None]),
        (
            format_texts,
            "text",
            ["", None, "null", "NULL", "None", "{}", ",", " a ", '"', "\\", '\\"', '","', "ü\n\t"],
        ),
        (format_texts, "text", ["\x01", None, "\x1f", "\\n"]),
        (format_documents, "text", ['{"a":"\\u0000 \\" \\\\ \\n"}', None, "x" * 100_000]),
    ],
)
async def test_an_array_comes_back_as_it_was(
    migrated: str, written: Any, kind: str, values: list[Any]
) -> None:
    connection = await connect(migrated)
    assert await connection.fetchval(f"select $1::text::{kind}[]", written(values)) == values
    await connection.close()


async def test_a_character_that_postgres_has_not_is_replaced(migrated: str) -> None:
    connection = await connect(migrated)
    assert await connection.fetchval("select $1::text::text[]", format_texts(["a\0b", None])) == [
        "a\ufffdb",
        None,
    ]
    await connection.close()
