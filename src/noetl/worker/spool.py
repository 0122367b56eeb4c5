"""Ending reports that no server has acknowledged. They outlive the worker's process.

The spool is bounded, because a worker with spooled reports claims nothing. An entry is either
complete or not there.
"""

import asyncio
import os
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import msgspec

from noetl.faults import hit_fault_point
from noetl.model.messages import Report
from noetl.private_folders import make_private_folder

DEFAULT_SPOOL_REPORTS = 1_024  # reports
_SUFFIX = ".report"


class Spool(Protocol):
    async def load(self) -> list[Report]:
        """The reports that an earlier process could not deliver, oldest first."""
        ...

    async def add(self, report: Report) -> None: ...
    async def remove(self, report: Report) -> None: ...

    @property
    def free_places(self) -> int: ...


class MemorySpool:
    """A spool for one process. The simulator keeps it over restarts, like a disk."""

    def __init__(self, capacity: int = DEFAULT_SPOOL_REPORTS) -> None:
        self._entries: dict[str, Report] = {}
        self._capacity = capacity

    @property
    def free_places(self) -> int:
        return self._capacity - len(self._entries)

    async def load(self) -> list[Report]:
        return list(self._entries.values())

    async def add(self, report: Report) -> None:
        hit_fault_point("spool.middle")
        self._entries[report_name(report)] = report

    async def remove(self, report: Report) -> None:
        self._entries.pop(report_name(report), None)


class FileSpool:
    """One file per entry.

    The file starts with a checksum, is written under another name and then renamed. A file that
    does not match its checksum is ignored.
    """

    def __init__(self, folder: Path, capacity: int = DEFAULT_SPOOL_REPORTS) -> None:
        self._folder = folder
        self._capacity = capacity
        self._names: dict[str, str] = {}
        self._next = 0

    @property
    def free_places(self) -> int:
        return self._capacity - len(self._names)

    async def load(self) -> list[Report]:
        return await asyncio.to_thread(self._load_files)

    async def add(self, report: Report) -> None:
        await asyncio.to_thread(self._write_file, report)

    async def remove(self, report: Report) -> None:
        name = self._names.pop(report_name(report), None)
        if name is not None:
            await asyncio.to_thread((self._folder / name).unlink, missing_ok=True)

    def _load_files(self) -> list[Report]:
        make_private_folder(self._folder)
        reports: list[Report] = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            report = _decode_report(path.read_bytes())
            if report is None:
                path.unlink(missing_ok=True)
                continue
            reports.append(report)
            self._names[report_name(report)] = path.name
            number = int(path.name.partition("-")[0])
            self._next = max(self._next, number + 1)
        for torn in self._folder.glob("*.part"):
            torn.unlink(missing_ok=True)
        return reports

    def _write_file(self, report: Report) -> None:
        key = report_name(report)
        name = self._names.get(key) or f"{self._next:012}-{key[:16]}{_SUFFIX}"
        data = msgspec.json.encode(report)
        whole = sha256(data).hexdigest().encode() + b"\n" + data
        half = len(whole) // 2
        make_private_folder(self._folder)
        part = self._folder / f"{name}.part"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(whole[:half])
            file.flush()
            hit_fault_point("spool.middle")
            file.write(whole[half:])
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._folder / name)
        _sync_folder(self._folder)
        self._names[key] = name
        self._next += 1


def has_spooled_reports(folder: Path) -> bool:
    """Whether the spool in this folder holds a report."""
    try:
        names = os.listdir(folder)
    except OSError:  # the worker had no spool
        return False
    return any(name.endswith(_SUFFIX) for name in names)


def report_name(report: Report) -> str:
    return sha256(f"{report.command_id}:{report.attempt}:{report.key}".encode()).hexdigest()


def _decode_report(whole: bytes) -> Report | None:
    checksum, _, data = whole.partition(b"\n")
    if sha256(data).hexdigest().encode() != checksum:
        return None
    try:
        return msgspec.json.decode(data, type=Report)
    except msgspec.DecodeError:
        return None


def _sync_folder(folder: Path) -> None:
    """Make a rename durable: it is durable only when its directory is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
