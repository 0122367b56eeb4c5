"""Examples that need a database or an API, as a user runs them: `noetl run`, in a home of its own."""

from tests.api.process import Api
from tests.integration.cli.conftest import Noetl


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
