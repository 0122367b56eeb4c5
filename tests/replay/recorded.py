"""Logs that a version has recorded, in files."""

import lzma
from pathlib import Path

import msgspec

LOGS = Path(__file__).parent / "logs"


class StoredEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event as its row holds it."""

    meta: str
    result: str | None = None


class RecordedLog(msgspec.Struct, frozen=True):
    """The log of one execution, and what was derived from it when it was recorded."""

    path: str
    execution_id: str
    status: str
    recovered: int
    state_hash: str
    events: tuple[StoredEvent, ...]


def read_logs(file: Path) -> list[RecordedLog]:
    lines = lzma.decompress(file.read_bytes()).splitlines()
    return [msgspec.json.decode(line, type=RecordedLog) for line in lines]
