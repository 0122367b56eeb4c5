"""Files: JSON lines, a JSON list, CSV or Parquet. Each is written beside its place and moved there whole, or not at all.

A file is named by the key of its call, so a call that is repeated finds what it has written: `out` is a folder of such files,
`out/orders.csv` becomes `out/orders-<key>.csv`. With `mode: replace` the file is `path` itself, whoever wrote it before.
Paths begin where the worker runs.
"""

import asyncio
import csv
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

import orjson

from noetl.tools.port import Call
from noetl.tools.sinks.records import Column, Record, SinkError, Target, batches, columns_of

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
FORMATS = {"jsonl": ".jsonl", "ndjson": ".jsonl", "json": ".json", "csv": ".csv", "parquet": ".parquet"}
MODES = ("insert", "append", "replace")


async def write(target: Target, call: Call, value: Any) -> dict[str, Any]:
    name, format = placed(target, call.key)
    place = Path(name)
    if target.mode != "replace" and await asyncio.to_thread(place.exists):
        return {"row_count": 0, "repeated": True, "path": str(place)}
    return {"row_count": await written(place, format, value), "path": str(place)}


async def written(place: Path, format: str, value: Any) -> int:
    """How many rows it has."""
    try:
        draft = await asyncio.to_thread(Draft, place, format)
        try:
            async for batch in batches(value):
                await asyncio.to_thread(draft.add, batch)
            await asyncio.to_thread(draft.finish)
        finally:
            await asyncio.to_thread(draft.close)
    except OSError as error:
        raise SinkError("SINK_FILE", f"{place} cannot be written: {error.strerror or error}", kind="io") from None
    return draft.rows


def placed(target: Target, key: str) -> tuple[PurePosixPath, str]:
    """Its path and its format."""
    if target.mode not in MODES:
        message = f"a target of kind {target.kind} knows the modes insert and replace, not {target.mode}"
        raise SinkError("SINK_TARGET", message, kind="config")
    if not target.path:
        raise SinkError("SINK_TARGET", f"a target of kind {target.kind} needs `path`", kind="config")
    path = PurePosixPath(target.path)
    format = target.format or SUFFIXES.get(path.suffix.lower(), "jsonl")
    if format not in FORMATS:
        raise SinkError("SINK_TARGET", f"unknown format {format!r}: jsonl, json, csv or parquet", kind="config")
    is_folder = target.path.endswith("/") or not path.suffix
    if target.mode == "replace":
        if is_folder:
            raise SinkError("SINK_TARGET", f"mode replace needs the name of a file, not {target.path!r}", kind="config")
        return path, format
    return path / f"{key}{FORMATS[format]}" if is_folder else path.with_stem(f"{path.stem}-{key}"), format


class Draft:
    """A file on its way; used in one thread at a time."""

    def __init__(self, place: Path, format: str) -> None:
        self.rows = 0
        self._place = place
        place.parent.mkdir(parents=True, exist_ok=True)
        opened, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.", suffix=".part")
        os.fchmod(opened, 0o644 & ~_umask())
        self._path = Path(name)
        self._file = os.fdopen(opened, "wb")
        self._form = FORMS[FORMATS[format]](self._file)

    def add(self, batch: list[Record]) -> None:
        self._form.add(batch, self.rows)
        self.rows += len(batch)

    def finish(self) -> None:
        """Durable, and in its place."""
        self._form.end()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.replace(self._place)
        folder = os.open(self._place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        self._file.close()
        with suppress(FileNotFoundError):
            self._path.unlink()


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


# ---- forms -------------------------------------------------------------------------------------------------------------


class Form(ABC):
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    @abstractmethod
    def add(self, batch: list[Record], first: int) -> None: ...

    def end(self) -> None:
        """After the last batch."""
        return


class Lines(Form):
    def add(self, batch: list[Record], first: int) -> None:
        self._file.write(b"".join(orjson.dumps(row) + b"\n" for row in batch))


class Listed(Form):
    def add(self, batch: list[Record], first: int) -> None:
        self._file.write(b",\n" if first else b"[\n")
        self._file.write(b",\n".join(map(orjson.dumps, batch)))

    def end(self) -> None:
        self._file.write(b"[]\n" if not self._file.tell() else b"\n]\n")


class Csv(Form):
    """Columns are those of the first batch."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._columns: list[str] = []

    def add(self, batch: list[Record], first: int) -> None:
        if not first:
            self._columns = columns_of(batch)
            self._write([self._columns])
        _check(batch, self._columns, first)
        text = Column("", "").text
        self._write([[text(row.get(name)) for name in self._columns] for row in batch])

    def _write(self, rows: list[list[Any]]) -> None:
        csv.writer(_Encoded(self._file)).writerows(rows)


class _Encoded:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(text.encode())


class Parquet(Form):
    """Types are those of the first batch."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._writer: Any = None

    def add(self, batch: list[Record], first: int) -> None:
        import pyarrow as pa  # type: ignore[import-untyped]  # only whoever writes Parquet pays for it
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        try:
            if self._writer is None:
                columns = {name: pa.array([row.get(name) for row in batch]) for name in columns_of(batch)}
                table = pa.table(columns)
                self._writer = pq.ParquetWriter(self._file, table.schema, compression="zstd")
            else:
                _check(batch, self._writer.schema.names, first)
                table = pa.Table.from_pylist(batch, self._writer.schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            message = (
                f"rows[{first}] to rows[{first + len(batch) - 1}] have a column whose values differ in type: {error}"
            )
            raise SinkError("SINK_VALUE", message, row=first) from None
        self._writer.write_table(table)

    def end(self) -> None:
        if self._writer is None:
            raise SinkError("SINK_DATA", "no rows: a Parquet file has the columns of its rows")
        self._writer.close()


def _check(batch: list[Record], columns: list[str], first: int) -> None:
    if unknown := [name for name in columns_of(batch) if name not in columns]:
        row = first + next(number for number, record in enumerate(batch) if unknown[0] in record)
        message = f"rows[{row}] has a column {unknown[0]!r}, which the rows before it have not ({', '.join(columns)})"
        raise SinkError("SINK_COLUMN", message, column=unknown[0], row=row)


FORMS: dict[str, Callable[[IO[bytes]], Form]] = {".jsonl": Lines, ".json": Listed, ".csv": Csv, ".parquet": Parquet}
