"""The log as tables of Spark SQL."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.model.errors import InvalidInput
from noetl.spark.jobs.lake import LakeStore
from noetl.spark.jobs.query import open_query
from tests.integration.spark.jobs.old_log import EXECUTIONS


def test_events_executions_results_and_named_rows_are_tables(
    log: str, lake: LakeStore, tmp_path: Path, spark_url: str
) -> None:
    pq.write_table(pa.table({"path": ["flows/chain"], "weight": [3]}), tmp_path / "weights.parquet")
    with open_query(log, lake, spark_url, rows={"weights": tmp_path / "weights.parquet"}) as ask:
        (counted,) = ask(
            "select count(distinct execution_id) as n, count(*) > 0 as some from events"
        ).to_pylist()
        assert counted == {"n": EXECUTIONS, "some": True}
        weighted = ask(
            "select sum(weight) as n from executions join weights using (path) where status = 'completed'"
        )
        assert weighted.to_pylist() == [{"n": 3 * EXECUTIONS // 5}]
        joined = ask(
            "select count(*) as n from results r join executions x using (execution_id) where r.step = 's0'"
        )
        assert joined.to_pylist()[0]["n"] > 0
        with pytest.raises(InvalidInput, match="nothing_like_it"):
            ask("select * from nothing_like_it")
