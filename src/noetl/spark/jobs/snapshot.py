"""Bulk reads of the log in one transaction: all reads see the same events, rows and files.

The event table is locked in the weakest mode before the snapshot is taken. So no partition can be
dropped meanwhile, and no other transaction waits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc  # type: ignore[import-untyped]  # it has no types
import pyarrow as pa

from noetl.model.errors import StoreUnavailable
from noetl.spark.jobs.event_rows import EVENT_COLUMNS, cast_events

BEGIN_STATEMENTS = (
    "set statement_timeout = 0",
    "set idle_in_transaction_session_timeout = 0",
    "begin isolation level repeatable read read only",
    "lock table noetl.event_part in access share mode",
)


class LogSnapshot:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def query_batches(self, query: str) -> pa.RecordBatchReader:
        """The rows of a query. The reader has a schema even if there are no rows."""
        self._cursor.execute(query)
        return self._cursor.fetch_record_batch()

    def query_rows(self, query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for batch in self.query_batches(query):
            rows += batch.to_pylist()
        return rows

    def read_events(
        self, where: str = "true", order: str = "execution_id, part_seq, seq"
    ) -> Iterator[pa.RecordBatch]:
        """The events for which a condition holds, cast to the schema of event rows.

        The condition may contain only numbers and names of columns.
        """
        query = f"select {EVENT_COLUMNS} from noetl.event e where {where} order by {order}"
        for batch in self.query_batches(query):
            yield cast_events(batch)

    def read_database_name(self) -> str:
        """The unique name of this database."""
        (row,) = self.query_rows(
            "select (select system_identifier from pg_control_system())::text || '-' || oid::text as name"
            " from pg_database where datname = current_database()"
        )
        return str(row["name"])

    def read_last_seqs(self) -> dict[int, int]:
        """The seq of the last event of every shard."""
        shards = self.query_rows("select * from noetl.execution_shard")
        return {row["shard_id"]: row["last_seq"] for row in shards}

    def list_cold_files(self, ids: tuple[int, int] | None = None) -> list[dict[str, Any]]:
        """The compacted files, oldest first. `ids` limits them to files with executions from the
        first id up to, but without, the second."""
        condition = "true"
        if ids is not None:
            condition = f"execution_id >= {ids[0]} and execution_id < {ids[1]}"
        return self.query_rows(
            "select file_id, path, events, sha256 from noetl.cold_file where file_id in"
            f" (select file_id from noetl.tombstone where {condition}) order by file_id"
        )


@contextmanager
def open_snapshot(dsn: str) -> Iterator[LogSnapshot]:
    """Open a snapshot of the log. StoreUnavailable if the database cannot be reached."""
    try:
        with adbc.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in BEGIN_STATEMENTS:
                cursor.execute(statement)
            yield LogSnapshot(cursor)
            cursor.execute("commit")
    except adbc_driver_manager.OperationalError as error:
        raise StoreUnavailable(f"Postgres: {error}", hint="is it running and reachable?") from error
