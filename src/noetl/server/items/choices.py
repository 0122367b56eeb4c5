"""Checks the items that a person has chosen to run again: each must have failed."""

from collections.abc import Collection
from typing import Any

from noetl.server.items.manifests import LoopManifest, find_earlier_run
from noetl.server.items.scan import PartScan, ReadRows, ScanPosition, find_item_row
from noetl.server.results.origins import TenantManifests

MAX_SCANNED_PAGES = 16  # of failed items of a retried loop


async def find_unfailed_items(
    manifests: TenantManifests,
    read_rows: ReadRows,
    manifest: LoopManifest | None,
    indexes: Collection[int],
) -> list[int]:
    """The items among these that have not failed, or of which no failure was found."""
    if manifest is None:
        return sorted(indexes)
    if await find_earlier_run(manifests, manifest) is not None:
        return await _scan_failed_items(manifests, read_rows, manifest, indexes)
    others: list[int] = []
    for index in sorted(indexes):
        found = await find_item_row(manifests, read_rows, manifest, index)
        if found is None or found.row["status"] != "error":
            others.append(index)
    return others


async def _scan_failed_items(
    manifests: TenantManifests,
    read_rows: ReadRows,
    manifest: LoopManifest,
    indexes: Collection[int],
) -> list[int]:
    """As `find_unfailed_items`, for a loop that was retried: where its items are is not known."""
    missing = set(indexes)

    def is_missing_failure(row: dict[str, Any]) -> bool:
        return row["status"] == "error" and row["index"] in missing

    position = ScanPosition()
    for _ in range(MAX_SCANNED_PAGES):
        limit = len(missing)
        scan = PartScan(manifests, read_rows, is_missing_failure, limit, only_failed=True)
        page = await scan.run(manifest, position)
        missing -= {found.row["index"] for found in page.found}
        if not missing or page.next is None:
            break
        position = page.next
    return sorted(missing)
