"""Examples that need a database, an API or Spark, as a user runs them: `noetl run`, in a home of its own."""

from pathlib import Path

import pyarrow.parquet as pq

from tests.api.process import Api
from tests.integration.cli.conftest import Noetl
from tests.spark import spark_url

__all__ = ["spark_url"]

SALES = """
country  orders  revenue  best_product
Egypt    993     34446    scarf
Denmark  993     30959    radio
Chad     999     27306    kettle
Brazil   1014    23944    atlas
Austria  996     19882    chair
"""


def test_the_first_one_ends_with_its_table(noetl: Noetl, spark_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "sales"
    for _ in range(2):
        done = noetl.and_env(NOETL_SPARK_PROFILE=spark_url)(
            "run", "examples/quickstart.yaml", "--set", f"folder={folder}"
        )
        assert done.code == 0, done.out + done.err
        assert SALES in done.out
    assert pq.read_table(folder).num_rows == 4_995  # five have no amount


def test_pages_of_an_api_go_into_a_table(noetl: Noetl, api: Api) -> None:
    for _ in range(2):
        said = noetl.json("run", "examples/pagination.yaml", "--set", f"base_url={api.url}")
        assert said["result"]["rows"] == [{"assessments": 35, "best": 100}]


def test_a_table_is_worked_through_as_a_queue(noetl: Noetl) -> None:
    said = noetl.json("run", "examples/cursor_queue.yaml", "--set", "orders=60")
    assert said["result"]["rows"] == [{"invoices": 60, "open": 0, "total": 21777}]


def test_a_failure_that_is_handled_is_none(noetl: Noetl) -> None:
    said = noetl.json("run", "examples/recovered_failure.yaml")
    assert said["result"] == {"cheapest": "tea", "because": "HTTP_CONNECTION"}
    assert said["steps"]["from_primary"]["status"] == "failed"
