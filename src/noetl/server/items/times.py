"""How long the items of a command took, as a few bars. Pure."""

from typing import Any

from noetl.server.items.scan import ScanPage
from noetl.server.items.views import ItemBarView, ItemTimesView

MAX_BARS = 120


def make_times_view(step: str, run: int, page: ScanPage) -> ItemTimesView:
    """The items in the order of their indexes, neighbours together if there are many."""
    rows = sorted((found.row for found in page.found), key=lambda row: row["index"])
    width = max(1, -(-len(rows) // MAX_BARS))
    groups = [rows[start : start + width] for start in range(0, len(rows), width)]
    return ItemTimesView(
        step=step,
        run=run,
        items=len(rows),
        bars=[_make_bar(group) for group in groups],
        is_whole=page.next is None,
    )


def _make_bar(rows: list[dict[str, Any]]) -> ItemBarView:
    slowest = max(rows, key=lambda row: row.get("ms") or 0)
    return ItemBarView(
        first=rows[0]["index"],
        last=rows[-1]["index"],
        ms=slowest.get("ms") or 0,
        slowest=slowest["index"],
        failed=sum(row["status"] == "error" for row in rows),
    )
