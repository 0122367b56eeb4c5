"""`transfer`: moves rows from a source to a target, in batches.

The value is `{read, written, repeated}`, and the `path` of a file. The rows of the source are kept
in a local file first, so that neither side waits for the other, and nothing is written if reading
fails. A database is written in one transaction; a file appears under its name at once.
`transfer_targets.py` explains why a repeated call adds no rows twice.
"""

import asyncio
from collections.abc import Sequence
from glob import iglob
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from noetl.model.errors import Failure
from noetl.results.formats.rowsets import RowSetReader, RowSetWriter, open_table_reader
from noetl.results.formats.tables import EncodedTable
from noetl.tools.artifact import copy_table, open_artifact_value
from noetl.tools.duckdb.tool import Duckdb, format_duckdb_literal, make_parquet_scan
from noetl.tools.duckdb.tool import make_duckdb_failure as duckdb_failure
from noetl.tools.egress.guard import EgressGuard
from noetl.tools.port import Call, Failed, Outcome, Success
from noetl.tools.postgres.tool import Postgres, make_sql_failure
from noetl.tools.sink.records import SinkError
from noetl.tools.sql.statements import SqlError
from noetl.tools.sql.tabular import make_arrow_table
from noetl.tools.transfer import targets
from noetl.tools.transfer.csv_lines import check_columns

FORMAT_NAMES = "parquet, csv, json or jsonl"
CSV_OPTIONS = """allow_quoted_nulls = false, quote = '"', escape = '"'"""
# For a Postgres target, values stay text or JSON: Postgres reads them as the types of its columns.
# Types that DuckDB guesses would lose digits.
CSV_TEXT_OPTIONS = ", all_varchar = true, header = true"
JSON_TEXT_OPTIONS = ", maximum_depth = 1"


class Transfer:
    kind = "transfer"
    raw = frozenset({"source"})

    def __init__(
        self, guard: EgressGuard | None = None, folders: Sequence[str] | None = None
    ) -> None:
        self._postgres = Postgres(guard)
        self._duckdb = Duckdb(folders)
        self._file_reader = Duckdb()  # runs SQL of our own

    async def close(self) -> None:
        await self._postgres.close()

    async def run(self, call: Call) -> Outcome:
        try:
            rows = await self._read_transfer_source(call)
            if not isinstance(rows, EncodedTable):
                return rows
            try:
                return Success(await self._write_target(call, rows))
            finally:
                await asyncio.to_thread(rows.close)
        except (SqlError, SinkError) as error:
            return Failed(error.failure)
        except psycopg.Error as error:
            return Failed(make_sql_failure(error), {"pg": {"sqlstate": error.sqlstate}})
        except duckdb.Error as error:
            return Failed(duckdb_failure(error))
        except OSError as error:
            message = f"the file cannot be written: {error}"
            return Failed(Failure(code="FILE_ERROR", kind="io", message=message))

    # ---- source ----------------------------------------------------------------------------------

    async def _read_transfer_source(self, call: Call) -> EncodedTable | Failed:
        """The rows of the source."""
        config = call.config["source"]
        if "ref" in config:
            return await self._read_referenced_rows(call, config["ref"])
        kind = config.get("kind")
        if "path" in config:
            query = await _make_file_query(call, config)
            return await self._run_source_query(call, self._file_reader, {"query": query}, None)
        query_config = {"query": config.get("query")}
        for name in ("params", "database"):
            if name in config:
                query_config[name] = await _render_value(call, config[name])
        if kind == "postgres":
            return await self._run_source_query(
                call, self._postgres, query_config, config.get("auth")
            )
        if kind == "duckdb":
            return await self._run_source_query(call, self._duckdb, query_config, None)
        message = f"a transfer reads postgres, duckdb, a file or a reference, not {kind!r}"
        raise SqlError("TRANSFER_SOURCE", message, "config")

    async def _run_source_query(
        self, call: Call, tool: Postgres | Duckdb, config: dict[str, Any], auth: Any
    ) -> EncodedTable | Failed:
        """The rows of a query, run by another tool."""
        resolved_auth = await _resolve_auth(call, auth)
        query_call = replace(call, config=config, auth=resolved_auth)
        outcome = await tool.run(query_call)
        if isinstance(outcome, Success) and isinstance(outcome.value, EncodedTable):
            return outcome.value
        if isinstance(outcome, Failed):
            return outcome
        raise SqlError("TRANSFER_SOURCE", "the source of a transfer gives no rows", "config")

    async def _read_referenced_rows(self, call: Call, template: Any) -> EncodedTable:
        """The rows of a reference."""
        value = await open_artifact_value(call, template)
        if isinstance(value, str) and call.rendering is not None:
            value = await call.rendering.fetched(value)
        if isinstance(value, RowSetReader):
            return await asyncio.to_thread(copy_table, value, call.tables)
        rows = value.get("rows") if isinstance(value, dict) else value
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise SqlError("TRANSFER_SOURCE", "the reference leads to no rows", "config")
        arrow_table = make_arrow_table(rows)
        writer = RowSetWriter(arrow_table.schema, call.tables)
        for batch in arrow_table.to_batches():
            writer.write(batch)
        return writer.finish()

    # ---- target ----------------------------------------------------------------------------------

    async def _write_target(self, call: Call, rows: EncodedTable) -> dict[str, Any]:
        target = targets.TransferTarget.from_call(call)
        reader = await asyncio.to_thread(open_table_reader, rows)
        match target.kind:
            case "postgres":
                auth = await _resolve_auth(call, call.config["target"].get("auth"))
                async with self._postgres.open_connection(auth, target.database) as connection:
                    is_json = await _is_json_source(call)
                    written = await targets.write_to_postgres(connection, target, reader, is_json)
            case "duckdb":
                written = await targets.write_to_duckdb(target, reader, call.tables.staging)
            case "file":
                written = await targets.write_to_file(target, reader)
            case kind:
                message = f"a transfer writes postgres, duckdb or a file, not {kind!r}"
                raise SqlError("TRANSFER_TARGET", message, "config")
        value: dict[str, Any] = {
            "read": rows.rows,
            "written": written or 0,
            "repeated": written is None,
        }
        if target.kind == "file":
            path, _ = targets.find_file_path(target)
            value["path"] = str(path)
        return value


async def _render_value(call: Call, template: Any) -> Any:
    if call.rendering is None:
        return template
    return await call.rendering.value(template)


async def _resolve_auth(call: Call, template: Any) -> Any:
    """The credential of the source or the target; without a template, that of the task."""
    if template is None:
        return call.auth
    auth = await _render_value(call, template)
    if call.credential is None:
        return auth
    return await call.credential(auth)


async def _describe_file(call: Call, config: dict[str, Any]) -> tuple[str, str]:
    """The path and the format of a source."""
    path = str(await _render_value(call, config["path"]))
    suffix = path.rpartition(".")[2]
    format = str(await _render_value(call, config.get("format")) or suffix).lower()
    if format in ("jsonl", "ndjson"):
        format = "json"
    return path, format


async def _is_json_source(call: Call) -> bool:
    """Whether the source is a JSON file."""
    config = call.config["source"]
    if "ref" in config or "path" not in config:
        return False
    _, format = await _describe_file(call, config)
    return format == "json"


async def _make_file_query(call: Call, config: dict[str, Any]) -> str:
    """The query that reads the files of a source."""
    path, format = await _describe_file(call, config)
    to_postgres = call.config["target"].get("kind") == "postgres"
    match format:
        case "parquet":
            return make_parquet_scan([path], await asyncio.to_thread(_read_parquet_schema, path))
        case "csv":
            options = CSV_OPTIONS + CSV_TEXT_OPTIONS if to_postgres else CSV_OPTIONS
            await asyncio.to_thread(check_columns, path, options)
            return f"FROM read_csv({format_duckdb_literal(path)}, {options})"
        case "json":
            options = JSON_TEXT_OPTIONS if to_postgres else ""
            return f"FROM read_json({format_duckdb_literal(path)}{options})"
        case _:
            message = f"a file is {FORMAT_NAMES}, not {format!r}: say `format`"
            raise SqlError("TRANSFER_SOURCE", message, "config")


def _read_parquet_schema(path: str) -> pa.Schema:
    """The Arrow schema that is stored in a Parquet file, which DuckDB does not read.

    It is empty for files that are not on this machine.
    """
    first_file = next(iglob(path, recursive=True), None)
    if first_file is None:
        return pa.schema([])
    try:
        return pq.read_schema(first_file)
    except (pa.ArrowException, OSError):  # DuckDB reports the error
        return pa.schema([])
