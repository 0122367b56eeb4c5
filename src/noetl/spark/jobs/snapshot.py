"""One moment of the log, read in bulk: every read of a snapshot sees the same events, rows and files.

The table is locked before the moment is chosen, in the weakest way there is: nobody can take a partition away meanwhile, and
nobody else notices.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc  # type: ignore[import-untyped]  # it has no types
import pyarrow as pa

from noetl.model.errors import StoreUnavailable
from noetl.spark.jobs.rows import COLUMNS, typed

BEGIN = (
    "set statement_timeout = 0",
    "set idle_in_transaction_session_timeout = 0",
    "begin isolation level repeatable read read only",
    "lock table noetl.event in access share mode",
)


class LogSnapshot:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def batches(self, query: str) -> pa.RecordBatchReader:
        """They have a schema also where there are none."""
        self._cursor.execute(query)
        return self._cursor.fetch_record_batch()

    def rows(self, query: str) -> list[dict[str, Any]]:
        return [row for batch in self.batches(query) for row in batch.to_pylist()]

    def events(
        self, where: str = "true", order: str = "execution_id, seq"
    ) -> Iterator[pa.RecordBatch]:
        """In the types of `rows.EVENTS`. A condition holds numbers and names of columns only."""
        for batch in self.batches(
            f"select {COLUMNS} from noetl.event e where {where} order by {order}"
        ):
            yield typed(batch)

    def database(self) -> str:
        """A name that no other database has."""
        (row,) = self.rows(
            "select (select system_identifier from pg_control_system())::text || '-' || oid::text as name"
            " from pg_database where datname = current_database()"
        )
        return str(row["name"])

    def last(self) -> dict[int, int]:
        """By shard: its last event."""
        return {
            row["shard_id"]: row["last_seq"]
            for row in self.rows("select * from noetl.execution_shard")
        }

    def cold(self, ids: tuple[int, int] | None = None) -> list[dict[str, Any]]:
        """The files that events were moved to, oldest first; of executions from the first id to before the last."""
        some = "true" if ids is None else f"execution_id >= {ids[0]} and execution_id < {ids[1]}"
        return self.rows(
            "select file_id, path, events, sha256 from noetl.cold_file where file_id in"
            f" (select file_id from noetl.tombstone where {some}) order by file_id"
        )


@contextmanager
def snapshot(dsn: str) -> Iterator[LogSnapshot]:
    try:
        with adbc.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in BEGIN:
                cursor.execute(statement)
            yield LogSnapshot(cursor)
            cursor.execute("commit")
    except adbc_driver_manager.OperationalError as error:
        raise StoreUnavailable(f"Postgres: {error}", hint="is it running and reachable?") from error
