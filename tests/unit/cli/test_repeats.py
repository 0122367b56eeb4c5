"""Which executions `noetl exec retry --failed` looks at."""

import asyncio
from typing import Any, cast

from noetl.cli.repeats import MAX_REPEATED, _list_executions_to_retry
from noetl.client.rows import RowClient


class Listing:
    """A server with so many executions: every second one has failed."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def list_executions(
        self, *, before: str | None, limit: int, **filters: Any
    ) -> list[dict[str, Any]]:
        newest = self._count if before is None else int(before) - 1
        ids = range(newest, max(newest - limit, 0), -1)
        return [
            {
                "execution_id": str(each),
                "status": "failed" if each % 2 else "completed",
                "retry_of": None,
            }
            for each in ids
        ]


def choose_executions(count: int) -> tuple[list[str], bool]:
    rows, complete = asyncio.run(_list_executions_to_retry(cast(RowClient, Listing(count)), {}))
    return [row["execution_id"] for row in rows], complete


def test_all_failed_executions_are_chosen_oldest_first() -> None:
    assert choose_executions(5) == (["1", "3", "5"], True)
    ids, complete = choose_executions(MAX_REPEATED)
    assert (len(ids), ids[0], complete) == (MAX_REPEATED // 2, "1", True)


def test_more_executions_than_the_limit_are_said_to_be_left_out() -> None:
    ids, complete = choose_executions(MAX_REPEATED + 1)
    assert (len(ids), ids[0], complete) == (MAX_REPEATED // 2, "3", False)
