"""Files: JSON lines, a JSON list, CSV or Parquet. Each is written beside its place and moved there whole, or not at all.

A file is named by the key of its call, so a call that is repeated finds what it has written: `out` is a folder of such files,
`out/orders.csv` becomes `out/orders-<key>.csv`. With `mode: replace` the file is `path` itself, whoever wrote it before.
Paths begin where the worker runs. Stored row sets go from Arrow to CSV and Parquet as `results/formats.py` writes them.
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

from noetl.results.values import Unfit, columns_of
from noetl.tools.port import Call, Columnar
from noetl.tools.sinks.records import Record, SinkError, SinkTarget, batches, meant

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
FORMATS = {
    "jsonl": ".jsonl",
    "ndjson": ".jsonl",
    "json": ".json",
    "csv": ".csv",
    "parquet": ".parquet",
}
MODES = ("insert", "append", "replace")


async def write(target: SinkTarget, call: Call, value: Any) -> dict[str, Any]:
    name, format = placed(target, call.key)
    place = Path(name)
    if target.mode != "replace" and await asyncio.to_thread(place.exists):
        return {"row_count": 0, "repeated": True, "path": str(place)}
    return {"row_count": await written(place, format, value), "path": str(place)}


async def written(place: Path, format: str, value: Any) -> int:
    """How many rows it has. Those that are stored with their types keep them."""
    rows = meant(value)
    reader = await rows.reader() if isinstance(rows, Columnar) else None
    if reader is None:
        return await _filled(place, format, lambda draft: _records(draft, rows))
    try:
        return await copied(place, format, reader)
    finally:
        await asyncio.to_thread(reader.close)


async def copied(place: Path, format: str, reader: Any) -> int:
    """A `rowsets.Reader`, batch by batch."""

    async def fill(draft: FileDraft) -> None:
        await asyncio.to_thread(draft.form.begin, reader.schema)
        found = reader.batches()
        while (batch := await asyncio.to_thread(next, found, None)) is not None:
            await asyncio.to_thread(draft.add_columns, batch)

    return await _filled(place, format, fill)


async def _records(draft: "FileDraft", rows: Any) -> None:
    if draft.form.typed:
        await asyncio.to_thread(draft.form.begin, await _schema(rows))
    async for batch in batches(rows):
        await asyncio.to_thread(draft.add, batch)


async def _schema(rows: Any) -> Any:
    """Of all of them: they are in memory, or read twice."""
    from noetl.results.formats import Kinds  # Arrow: only whoever writes Parquet pays for it

    kinds = Kinds()
    async for batch in batches(rows):
        await asyncio.to_thread(kinds.see, batch)
    if not kinds.schema.names:
        raise SinkError("SINK_DATA", "no rows: a Parquet file has the columns of its rows")
    return kinds.schema


async def _filled(place: Path, format: str, fill: Callable[["FileDraft"], Awaitable[None]]) -> int:
    try:
        draft = await asyncio.to_thread(FileDraft, place, format)
        try:
            await fill(draft)
            await asyncio.to_thread(draft.finish)
        finally:
            await asyncio.to_thread(draft.close)
    except Unfit as error:
        raise SinkError("SINK_VALUE", str(error), column=error.column, row=error.row) from None
    except OSError as error:
        raise SinkError(
            "SINK_FILE", f"{place} cannot be written: {error.strerror or error}", kind="io"
        ) from None
    return draft.rows


def placed(target: SinkTarget, key: str) -> tuple[PurePosixPath, str]:
    """Its path and its format."""
    if target.mode not in MODES:
        message = (
            f"a target of kind {target.kind} knows the modes insert and replace, not {target.mode}"
        )
        raise SinkError("SINK_TARGET", message, kind="config")
    if not target.path:
        raise SinkError(
            "SINK_TARGET", f"a target of kind {target.kind} needs `path`", kind="config"
        )
    path = PurePosixPath(target.path)
    format = target.format or SUFFIXES.get(path.suffix.lower(), "jsonl")
    if format not in FORMATS:
        raise SinkError(
            "SINK_TARGET", f"unknown format {format!r}: jsonl, json, csv or parquet", kind="config"
        )
    is_folder = target.path.endswith("/") or not path.suffix
    if target.mode == "replace":
        if is_folder:
            raise SinkError(
                "SINK_TARGET",
                f"mode replace needs the name of a file, not {target.path!r}",
                kind="config",
            )
        return path, format
    return path / f"{key}{FORMATS[format]}" if is_folder else path.with_stem(
        f"{path.stem}-{key}"
    ), format


class FileDraft:
    """A file on its way; used in one thread at a time."""

    def __init__(self, place: Path, format: str) -> None:
        self.rows = 0
        self._place = place
        place.parent.mkdir(parents=True, exist_ok=True)
        opened, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.", suffix=".part")
        os.fchmod(opened, 0o644 & ~_umask())
        self._path = Path(name)
        self._file = os.fdopen(opened, "wb")
        self.form = FORMS[FORMATS[format]](self._file)

    def add(self, batch: list[Record]) -> None:
        self.form.add(batch, self.rows)
        self.rows += len(batch)

    def add_columns(self, batch: Any) -> None:
        self.form.add_columns(batch, self.rows)
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Durable, and in its place."""
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


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


# ---- forms -------------------------------------------------------------------------------------------------------------


class Form(ABC):
    typed = False  # it begins with a schema, also of plain records

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def begin(self, schema: Any) -> None:
        """Before the first batch, of rows that have one."""
        return

    @abstractmethod
    def add(self, batch: list[Record], first: int) -> None: ...

    def add_columns(self, batch: Any, first: int) -> None:
        from noetl.results.rowsets import as_rows  # Arrow: it is here already

        self.add(as_rows(batch), first)

    def end(self) -> None:
        """After the last batch."""
        return

    def close(self) -> None:
        """Before its file, also when there was no end."""
        return


class LinesForm(Form):
    def add(self, batch: list[Record], first: int) -> None:
        self._file.write(b"".join(orjson.dumps(row) + b"\n" for row in batch))


class Listed(Form):
    def add(self, batch: list[Record], first: int) -> None:
        self._file.write(b",\n" if first else b"[\n")
        self._file.write(b",\n".join(map(orjson.dumps, batch)))

    def end(self) -> None:
        self._file.write(b"[]\n" if not self._file.tell() else b"\n]\n")


class Csv(Form):
    """Columns are those of the schema, or else of the first batch."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._columns: list[str] = []

    def begin(self, schema: Any) -> None:
        self._begin(schema.names)

    def _begin(self, columns: list[str]) -> None:
        from noetl.results.formats import csv_header  # Arrow: only whoever writes CSV pays for it

        self._columns = columns
        self._file.write(csv_header(columns))

    def add(self, batch: list[Record], first: int) -> None:
        from noetl.results.formats import csv_records

        if not first:
            self._begin(columns_of(batch))
        _check(batch, self._columns, first)
        self._file.write(csv_records(batch, self._columns))

    def add_columns(self, batch: Any, first: int) -> None:
        from noetl.results.formats import csv_rows

        self._file.write(csv_rows(batch))


class ParquetForm(Form):
    typed = True

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._written: Any = None

    def begin(self, schema: Any) -> None:
        from noetl.results.formats import ParquetWriter as Written

        self._schema = schema
        self._written = Written(self._file, schema)

    def add(self, batch: list[Record], first: int) -> None:
        from noetl.results.formats import columns

        self._written.add(columns(batch, self._schema, first))

    def add_columns(self, batch: Any, first: int) -> None:
        self._written.add(batch)

    def end(self) -> None:
        self._written.close()

    def close(self) -> None:
        if self._written is not None:
            with suppress(OSError):
                self._written.close()


def _check(batch: list[Record], columns: list[str], first: int) -> None:
    if unknown := [name for name in columns_of(batch) if name not in columns]:
        row = first + next(number for number, record in enumerate(batch) if unknown[0] in record)
        message = f"rows[{row}] has a column {unknown[0]!r}, which the rows before it have not ({', '.join(columns)})"
        raise SinkError("SINK_COLUMN", message, column=unknown[0], row=row)


FORMS: dict[str, Callable[[IO[bytes]], Form]] = {
    ".jsonl": LinesForm,
    ".json": Listed,
    ".csv": Csv,
    ".parquet": ParquetForm,
}
