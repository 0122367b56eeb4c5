"""`transfer`: rows from one place to another, batch by batch; `{read, written, repeated}`, and the `path` of a file.

What the source gives waits in a local file, so that neither side holds the other up, and nothing is written when reading fails.
A target is written in one transaction, or appears under its name at once; `transfer_targets.py` says why a repetition does not
double anything.
"""

import asyncio
from glob import iglob
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from noetl.model.errors import Failure
from noetl.results.rowsets import Reader, Writer, reader_of
from noetl.results.tables import EncodedTable
from noetl.tools import transfer_targets as targets
from noetl.tools.artifact import copied, source
from noetl.tools.duckdb import Duckdb, literal, scan
from noetl.tools.duckdb import failure as duckdb_failure
from noetl.tools.port import Call, Failed, Outcome, Success
from noetl.tools.postgres import Postgres, failure
from noetl.tools.sinks.records import SinkError
from noetl.tools.sql import SqlError
from noetl.tools.tabular import table
from noetl.tools.transfer_csv import check_columns

FORMATS = "parquet, csv, json or jsonl"
CSV = """allow_quoted_nulls = false, quote = '"', escape = '"'"""
AS_TEXT = ", all_varchar = true, header = true"  # Postgres reads each as its column's type: a guess would lose digits
AS_JSON = ", maximum_depth = 1"  # for the same reason


class Transfer:
    kind = "transfer"
    raw = frozenset({"source"})

    def __init__(self) -> None:
        self._postgres = Postgres()
        self._duckdb = Duckdb()

    async def close(self) -> None:
        await self._postgres.close()

    async def run(self, call: Call) -> Outcome:
        try:
            found = await self._read(call)
            if not isinstance(found, EncodedTable):
                return found
            try:
                return Success(await self._write(call, found))
            finally:
                await asyncio.to_thread(found.close)
        except (SqlError, SinkError) as error:
            return Failed(error.failure)
        except psycopg.Error as error:
            return Failed(failure(error), {"pg": {"sqlstate": error.sqlstate}})
        except duckdb.Error as error:
            return Failed(duckdb_failure(error))
        except OSError as error:
            message = f"the file cannot be written: {error}"
            return Failed(Failure(code="FILE_ERROR", kind="io", message=message))

    # ---- source ----------------------------------------------------------------------------------------------------------

    async def _read(self, call: Call) -> EncodedTable | Failed:
        given = call.config["source"]
        if "ref" in given:
            return await self._referred(call, given["ref"])
        kind = given.get("kind")
        if "path" in given:
            query = await _scan(call, given)
            return await self._asked(call, self._duckdb, {"query": query}, None)
        config = {"query": given.get("query")}
        for name in ("params", "database"):
            if name in given:
                config[name] = await _value(call, given[name])
        if kind == "postgres":
            return await self._asked(call, self._postgres, config, given.get("auth"))
        if kind == "duckdb":
            return await self._asked(call, self._duckdb, config, None)
        raise SqlError(
            "TRANSFER_SOURCE",
            f"a transfer reads postgres, duckdb, a file or a reference, not {kind!r}",
            "config",
        )

    async def _asked(
        self, call: Call, tool: Postgres | Duckdb, config: dict[str, Any], auth: Any
    ) -> EncodedTable | Failed:
        outcome = await tool.run(replace(call, config=config, auth=await _auth(call, auth)))
        if isinstance(outcome, Success) and isinstance(outcome.value, EncodedTable):
            return outcome.value
        if isinstance(outcome, Failed):
            return outcome
        raise SqlError("TRANSFER_SOURCE", "the source of a transfer gives no rows", "config")

    async def _referred(self, call: Call, template: Any) -> EncodedTable:
        found = await source(call, template)
        if isinstance(found, str) and call.rendering is not None:
            found = await call.rendering.fetched(found)
        if isinstance(found, Reader):
            return await asyncio.to_thread(copied, found, call.tables)
        rows = found.get("rows") if isinstance(found, dict) else found
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise SqlError("TRANSFER_SOURCE", "the reference leads to no rows", "config")
        made = table(rows)
        writer = Writer(made.schema, call.tables)
        for batch in made.to_batches():
            writer.write(batch)
        return writer.done()

    # ---- target ----------------------------------------------------------------------------------------------------------

    async def _write(self, call: Call, found: EncodedTable) -> dict[str, Any]:
        target = targets.TransferTarget.of(call)
        reader = await asyncio.to_thread(reader_of, found)
        match target.kind:
            case "postgres":
                auth = await _auth(call, call.config["target"].get("auth"))
                async with self._postgres.connection(auth, target.database) as connection:
                    written = await targets.into_postgres(
                        connection, target, reader, await _is_json(call)
                    )
            case "duckdb":
                written = await targets.into_duckdb(target, reader, call.tables.staging)
            case "file":
                written = await targets.into_file(target, reader)
            case kind:
                raise SqlError(
                    "TRANSFER_TARGET",
                    f"a transfer writes postgres, duckdb or a file, not {kind!r}",
                    "config",
                )
        where = {"path": str(targets.place(target)[0])} if target.kind == "file" else {}
        return {"read": found.rows, "written": written or 0, "repeated": written is None, **where}


async def _value(call: Call, template: Any) -> Any:
    return template if call.rendering is None else await call.rendering.value(template)


async def _auth(call: Call, template: Any) -> Any:
    """Of this side; without one, that of the task."""
    if template is None:
        return call.auth
    given = await _value(call, template)
    return given if call.credential is None else await call.credential(given)


async def _file(call: Call, given: dict[str, Any]) -> tuple[str, str]:
    """The path and the format of a source."""
    path = str(await _value(call, given["path"]))
    kind = str(await _value(call, given.get("format")) or path.rpartition(".")[2]).lower()
    return path, {"jsonl": "json", "ndjson": "json"}.get(kind, kind)


async def _is_json(call: Call) -> bool:
    given = call.config["source"]
    return "ref" not in given and "path" in given and (await _file(call, given))[1] == "json"


async def _scan(call: Call, given: dict[str, Any]) -> str:
    path, kind = await _file(call, given)
    typed = call.config["target"].get("kind") == "postgres"
    match kind:
        case "parquet":
            return scan([path], await asyncio.to_thread(_schema, path))
        case "csv":
            options = f"{CSV}{AS_TEXT if typed else ''}"
            await asyncio.to_thread(check_columns, path, options)
            return f"FROM read_csv({literal(path)}, {options})"
        case "json":
            return f"FROM read_json({literal(path)}{AS_JSON if typed else ''})"
        case _:
            raise SqlError(
                "TRANSFER_SOURCE", f"a file is {FORMATS}, not {kind!r}: say `format`", "config"
            )


def _schema(path: str) -> pa.Schema:
    """As whoever wrote the file meant it, which DuckDB does not ask; of files that are elsewhere, nothing is known."""
    first = next(iglob(path, recursive=True), None)
    try:
        return pa.schema([]) if first is None else pq.read_schema(first)
    except (pa.ArrowException, OSError):  # DuckDB will say what is wrong with it
        return pa.schema([])
