"""Writes files: JSON lines, a JSON list, CSV or Parquet.

A file is written under another name in the same folder, and renamed when it is complete. Its name
contains the key of the call, so a repeated call finds its file: `out` is a folder of such files,
and `out/orders.csv` becomes `out/orders-<key>.csv`. With `mode: replace` the file is `path` itself.
Paths are relative to the worker's folder. Stored row sets go from Arrow to CSV and Parquet by
`results/formats/exported.py`.
"""

import asyncio
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

import orjson

from noetl.results.formats.values import UnfitValue
from noetl.tools.port import Call, Columnar
from noetl.tools.sink.records import (
    Record,
    SinkError,
    SinkTarget,
    read_record_batches,
    unwrap_result,
)

FORMATS_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
SUFFIXES_BY_FORMAT = {
    "jsonl": ".jsonl",
    "ndjson": ".jsonl",
    "json": ".json",
    "csv": ".csv",
    "parquet": ".parquet",
}
FILE_MODES = ("insert", "append", "replace")


async def write_sink_file(
    target: SinkTarget,
    call: Call,
    value: Any,
) -> dict[str, Any]:
    name, format = find_target_path(target, call.key)
    path = Path(name)
    if target.mode != "replace" and await asyncio.to_thread(path.exists):
        return {"row_count": 0, "repeated": True, "path": str(path)}
    row_count = await write_rows(path, format, value)
    return {"row_count": row_count, "path": str(path)}


async def write_rows(path: Path, format: str, value: Any) -> int:
    """Write a file and return its number of rows. Rows that are stored with types keep them."""
    rows = unwrap_result(value)
    reader = None
    if isinstance(rows, Columnar):
        reader = await rows.reader()
    if reader is None:
        return await _write_draft(path, format, lambda draft: _write_records(draft, rows))
    try:
        return await copy_rows(path, format, reader)
    finally:
        await asyncio.to_thread(reader.close)


async def copy_rows(path: Path, format: str, reader: Any) -> int:
    """Write the rows of a `RowSetReader`, in batches."""

    async def copy_batches(draft: FileDraft) -> None:
        await asyncio.to_thread(draft.form.begin, reader.schema)
        arrow_batches = reader.batches()
        while (batch := await asyncio.to_thread(next, arrow_batches, None)) is not None:
            await asyncio.to_thread(draft.add_columns, batch)

    return await _write_draft(path, format, copy_batches)


async def _write_records(draft: "FileDraft", rows: Any) -> None:
    if draft.form.typed:
        schema = await draft.form.infer_schema(rows)
        await asyncio.to_thread(draft.form.begin, schema)
    async for batch in read_record_batches(rows):
        await asyncio.to_thread(draft.add_records, batch)


async def _write_draft(
    path: Path, format: str, fill: Callable[["FileDraft"], Awaitable[None]]
) -> int:
    """Write a file by `fill` and return its number of rows."""
    try:
        draft = await asyncio.to_thread(FileDraft, path, format)
        try:
            await fill(draft)
            await asyncio.to_thread(draft.finish)
        finally:
            await asyncio.to_thread(draft.close)
    except UnfitValue as error:
        raise SinkError("SINK_VALUE", str(error), column=error.column, row=error.row) from None
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        raise SinkError("SINK_FILE", message, kind="io") from None
    return draft.rows


def find_target_path(target: SinkTarget, key: str) -> tuple[PurePosixPath, str]:
    """The path and the format of the file."""
    if target.mode not in FILE_MODES:
        message = (
            f"a target of kind {target.kind} knows the modes insert and replace, not {target.mode}"
        )
        raise SinkError("SINK_TARGET", message, kind="config")
    if not target.path:
        message = f"a target of kind {target.kind} needs `path`"
        raise SinkError("SINK_TARGET", message, kind="config")
    path = PurePosixPath(target.path)
    format = target.format or FORMATS_BY_SUFFIX.get(path.suffix.lower(), "jsonl")
    if format not in SUFFIXES_BY_FORMAT:
        message = f"unknown format {format!r}: jsonl, json, csv or parquet"
        raise SinkError("SINK_TARGET", message, kind="config")
    is_folder = target.path.endswith("/") or not path.suffix
    if target.mode == "replace":
        if is_folder:
            message = f"mode replace needs the name of a file, not {target.path!r}"
            raise SinkError("SINK_TARGET", message, kind="config")
        return path, format
    if is_folder:
        return path / f"{key}{SUFFIXES_BY_FORMAT[format]}", format
    return path.with_stem(f"{path.stem}-{key}"), format


class FileDraft:
    """A file that is being written. Only one thread uses it at a time."""

    def __init__(self, place: Path, format: str) -> None:
        self.rows = 0
        self._place = place
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(
            dir=place.parent, prefix=f".{place.name}.", suffix=".part"
        )
        os.fchmod(descriptor, 0o644 & ~_read_umask())
        self._path = Path(name)
        self._file = os.fdopen(descriptor, "wb")
        self.form = _make_form(format, self._file)

    def add_records(self, batch: list[Record]) -> None:
        self.form.add_records(batch, self.rows)
        self.rows += len(batch)

    def add_columns(self, batch: Any) -> None:
        self.form.add_columns(batch, self.rows)
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Flush the file to the disk and give it its name."""
        self.form.end()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.replace(self._place)
        folder = os.open(self._place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        self.form.close()
        self._file.close()
        with suppress(FileNotFoundError):
            self._path.unlink()


def _read_umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


# ---- forms ---------------------------------------------------------------------------------------


class FileForm(ABC):
    """Writes rows to a file in one format."""

    typed = False  # it needs a schema, also for plain records

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    async def infer_schema(self, rows: Any) -> Any:
        """The schema of plain records. Only a typed form has one."""
        raise NotImplementedError

    def begin(self, schema: Any) -> None:
        """Called before the first batch, if the rows have a schema."""
        return

    @abstractmethod
    def add_records(self, batch: list[Record], first: int) -> None: ...

    def add_columns(self, batch: Any, first: int) -> None:
        from noetl.results.formats.rowsets import list_rows  # here, because it loads Arrow

        self.add_records(list_rows(batch), first)

    def end(self) -> None:
        """Called after the last batch."""
        return

    def close(self) -> None:
        """Called before the file is closed, also after an error."""
        return


class LinesForm(FileForm):
    def add_records(self, batch: list[Record], first: int) -> None:
        self._file.write(b"".join(orjson.dumps(row) + b"\n" for row in batch))


class JsonListForm(FileForm):
    def add_records(self, batch: list[Record], first: int) -> None:
        self._file.write(b",\n" if first else b"[\n")
        self._file.write(b",\n".join(map(orjson.dumps, batch)))

    def end(self) -> None:
        is_empty = not self._file.tell()
        self._file.write(b"[]\n" if is_empty else b"\n]\n")


def _make_form(format: str, file: IO[bytes]) -> FileForm:
    match format:
        case "jsonl":
            return LinesForm(file)
        case "json":
            return JsonListForm(file)
    from noetl.tools.sink import arrow_forms  # here, because it loads Arrow

    if format == "csv":
        return arrow_forms.CsvForm(file)
    return arrow_forms.ParquetForm(file)
