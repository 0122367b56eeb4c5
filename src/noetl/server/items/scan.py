"""Walks the parts of a loop's result and finds items in them, without opening more than it must.

A page opens at most `MAX_OPENED_PARTS` parts and about `MAX_OPENED_BYTES`. For failed items, only
parts that have some are opened. The result of a retried loop has the result of the earlier run as
its first part; items that did not run again are found there, with failed ones if the retry was
limited to other items.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from noetl.model.decisions import AddPart
from noetl.model.errors import InvalidInput
from noetl.model.reference import Reference
from noetl.server.items.manifests import (
    BEFORE_FIRST_PART,
    EarlierRun,
    LoopManifest,
    find_earlier_run,
)
from noetl.server.results.origins import MANIFEST_FORMAT, TenantManifests

MAX_OPENED_PARTS = 8
MAX_OPENED_BYTES = 8 << 20
MAX_SEARCHED_PARTS = 64  # parts before an item among which its part is looked for
MAX_DEFERRED_BEFORE = 1_000  # rows before the likely place of an item that are searched too
MAX_EARLIER_RUNS = 16  # earlier runs of a retried loop that items are shown of
_CURSOR = re.compile(r"([0-9]{1,2})\.(-?[0-9]{1,18})\.([0-9]{1,18})", re.ASCII)

ReadRows = Callable[[Reference, int, int], Awaitable[list[Any]]]
Matches = Callable[[dict[str, Any]], bool]


class ScanPosition(NamedTuple):
    """Where a page begins: the run (0: the newest), the first item of a part, a row in it."""

    depth: int = 0
    first: int = BEFORE_FIRST_PART
    row: int = 0

    def __str__(self) -> str:
        return f"{self.depth}.{self.first}.{self.row}"


def parse_position(text: str | None) -> ScanPosition:
    if text is None:
        return ScanPosition()
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise InvalidInput(f"after: {text!r} is not a page", hint="give `next` of the page before")
    return ScanPosition(int(match[1]), int(match[2]), int(match[3]))


class FoundRow(NamedTuple):
    """The row of an item and its part. `row["index"]` counts in the loop."""

    row: dict[str, Any]
    part: AddPart


class PartRange(NamedTuple):
    """The parts of a command: those that begin at `first` or later, and before `end`."""

    first: int
    end: int


class ScanPage(NamedTuple):
    found: list[FoundRow]
    looked_at: int
    opened: int  # parts
    next: ScanPosition | None


async def find_item_row(
    manifests: TenantManifests, read_rows: ReadRows, manifest: LoopManifest, index: int
) -> FoundRow | None:
    """The row of one item: of the newest run that has run it."""
    for _ in range(MAX_EARLIER_RUNS):
        earlier = await find_earlier_run(manifests, manifest)
        if earlier is None:
            return await _find_row_by_position(manifests, read_rows, manifest, index, index)
        found = await _find_repeated_row(manifests, read_rows, manifest, earlier.only, index)
        if found is not None:
            return found
        manifest = earlier.manifest
    return None


async def _find_repeated_row(
    manifests: TenantManifests,
    read_rows: ReadRows,
    manifest: LoopManifest,
    chosen: tuple[int, ...],
    index: int,
) -> FoundRow | None:
    """The row of an item in a run that has repeated a part of the loop. The positions of its items
    are known if they were chosen; otherwise its first parts are searched."""
    if index in chosen:
        position = chosen.index(index)
        return await _find_row_by_position(manifests, read_rows, manifest, position, index)
    if chosen:
        return None
    scan = PartScan(manifests, read_rows, lambda row: row["index"] == index, 1, only_failed=False)
    found = await scan.scan_one_run(manifest)
    return found[0] if found else None


async def _find_row_by_position(
    manifests: TenantManifests,
    read_rows: ReadRows,
    manifest: LoopManifest,
    position: int,
    index: int,
) -> FoundRow | None:
    """Rows of a part are in the order of their positions, from `first` on. Items that were retried
    later have parts of their own."""
    parts = await manifests.find_parts_before(manifest.name, position, MAX_SEARCHED_PARTS)
    parts = [part for part in parts if part.reference.format != MANIFEST_FORMAT]
    likely = [part for part in parts if part.count > 1 or part.first == position]
    for part in likely[:MAX_OPENED_PARTS]:
        place = min(position - part.first, part.count - 1)
        for start in (place, max(0, place - MAX_DEFERRED_BEFORE)):
            for row in await read_rows(part.reference, start, place + 1):
                if row["index"] + part.shift == index:
                    return FoundRow({**row, "index": index}, part)
    return None


class PartScan:
    """One page. `only_failed`: open only parts with failed items. `within`: only these parts, and no
    earlier run."""

    def __init__(
        self,
        manifests: TenantManifests,
        read_rows: ReadRows,
        matches: Matches,
        limit: int,
        *,
        only_failed: bool,
        within: PartRange | None = None,
    ) -> None:
        self._manifests = manifests
        self._read_rows = read_rows
        self._matches = matches
        self._limit = limit
        self._only_failed = only_failed
        self._within = within
        self._found: list[FoundRow] = []
        self._looked_at = 0
        self._opened = 0
        self._bytes_left = MAX_OPENED_BYTES
        # Failed items that a newer run than the one that is scanned has run again; None: all.
        self._repeated: frozenset[int] | None = frozenset()

    async def run(self, manifest: LoopManifest, start: ScanPosition) -> ScanPage:
        if self._within is None:
            end = await self._scan_runs(manifest, start)
        else:
            first = max(start.first, self._within.first)
            end = await self._scan_manifest(manifest, ScanPosition(0, first, start.row))
        return ScanPage(self._found, self._looked_at, self._opened, end)

    async def scan_one_run(self, manifest: LoopManifest) -> list[FoundRow]:
        """The first rows that match, of this run only."""
        await self._scan_manifest(manifest, ScanPosition())
        return self._found

    async def _scan_runs(self, manifest: LoopManifest, start: ScanPosition) -> ScanPosition | None:
        """Scan the run and the earlier ones. Returns where the next page begins."""
        for depth in range(MAX_EARLIER_RUNS):
            if depth >= start.depth:
                position = start if depth == start.depth else ScanPosition(depth)
                end = await self._scan_manifest(manifest, position)
                if end is not None:
                    return end
            earlier = await find_earlier_run(self._manifests, manifest)
            if earlier is None:
                return None
            self._note_repeated(earlier)
            if self._only_failed and self._repeated is None:
                return None
            manifest = earlier.manifest
        return None

    def _note_repeated(self, earlier: EarlierRun) -> None:
        """Remember which failed items of an earlier run have run again."""
        if not earlier.only:
            self._repeated = None
        elif self._repeated is not None:
            self._repeated |= set(earlier.only)

    def _ran_again(self, row: dict[str, Any]) -> bool:
        if row["status"] != "error":
            return False
        return self._repeated is None or row["index"] in self._repeated

    async def _scan_manifest(
        self, manifest: LoopManifest, start: ScanPosition
    ) -> ScanPosition | None:
        list_parts = self._manifests.read_manifest_page
        if self._only_failed:
            list_parts = self._manifests.find_failed_parts
        parts = await list_parts(manifest.name, start.first - 1, MAX_OPENED_PARTS + 2)
        for part in parts:
            if part.reference.format == MANIFEST_FORMAT:
                continue
            if self._within is not None and part.first >= self._within.end:
                return None
            row = start.row if part.first == start.first else 0
            if self._opened == MAX_OPENED_PARTS or self._bytes_left <= 0:
                return ScanPosition(start.depth, part.first, row)
            stopped_at = await self._scan_part(part, row)
            if stopped_at is not None:
                return ScanPosition(start.depth, part.first, stopped_at)
        return None

    async def _scan_part(self, part: AddPart, row: int) -> int | None:
        """Look at the rows of a part. Returns the row at which the next page begins, if any."""
        self._opened += 1
        row_bytes = max(1, (part.reference.bytes or 0) // max(part.count, 1))
        fitting = max(1, self._bytes_left // row_bytes)
        stop = min(part.count, row + fitting)
        rows = await self._read_rows(part.reference, row, stop)
        self._bytes_left -= row_bytes * (stop - row)
        for number, found in enumerate(rows, row):
            if len(self._found) == self._limit:
                return number
            self._looked_at += 1
            if part.shift:
                found = {**found, "index": found["index"] + part.shift}
            if not self._ran_again(found) and self._matches(found):
                self._found.append(FoundRow(found, part))
        return stop if stop < part.count else None
