"""Examples that need a database, an API or Spark, as a user runs them: `noetl run`, in a home of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pyarrow.parquet as pq

from tests.api.process import Api
from tests.spark import spark_url
from tests.stack import NoetlCommand
from tests.waiting import until

__all__ = ["spark_url"]

SALES = """
country  orders  revenue  best_product
Egypt    993     34446    scarf
Denmark  993     30959    radio
Chad     999     27306    kettle
Brazil   1014    23944    atlas
Austria  996     19882    chair
"""


def test_the_first_one_ends_with_its_table(
    noetl: NoetlCommand, spark_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "sales"
    for _ in range(2):
        done = noetl.and_env(NOETL_SPARK_PROFILE=spark_url)(
            "run", "examples/quickstart.yaml", "--set", f"folder={folder}"
        )
        assert done.code == 0, done.out + done.err
        assert SALES in done.out
    assert pq.read_table(folder).num_rows == 4_995  # five have no amount


def test_pages_of_an_api_go_into_a_table(noetl: NoetlCommand, api: Api) -> None:
    for _ in range(2):
        said = noetl.json("run", "examples/pagination.yaml", "--set", f"base_url={api.url}")
        assert said["result"]["rows"] == [{"assessments": 35, "best": 100}]


def test_a_table_is_worked_through_as_a_queue(noetl: NoetlCommand) -> None:
    said = noetl.json("run", "examples/cursor_queue.yaml", "--set", "orders=60")
    assert said["result"]["rows"] == [{"invoices": 60, "open": 0, "total": 21777}]


def test_each_incremental_load_goes_on_where_the_last_one_stopped(noetl: NoetlCommand) -> None:
    for arriving, expected in ((100, (100, 100, 100)), (20, (20, 120, 120)), (0, (0, 120, 120))):
        said = noetl.json("run", "examples/incremental.yaml", "--set", f"arriving={arriving}")
        assert said["result"]["rows"] == [
            dict(zip(("new", "loaded", "watermark"), expected, strict=True))
        ]
    assert noetl.json("state", "get", "examples/incremental", "watermark")["value"] == 120
    written = noetl.json("state", "history", "examples/incremental", "watermark")
    assert [(row["version"], row["value"]) for row in written] == [(2, 120), (1, 100)]
    assert (
        noetl("state", "set", "examples/incremental", "watermark", "50", "--if-version", "1").code
        == 2
    )
    noetl.json("state", "set", "examples/incremental", "watermark", "50", "--if-version", "2")
    said = noetl.json("run", "examples/incremental.yaml", "--set", "arriving=0")
    assert said["result"]["rows"] == [{"new": 70, "loaded": 120, "watermark": 120}]
    assert "read version 3, wrote version 4" in noetl("exec", "get", said["execution_id"]).out
    noetl.json("state", "unset", "examples/incremental", "watermark")
    assert noetl.json("state", "list") == []


def test_a_failure_that_is_handled_is_none(noetl: NoetlCommand) -> None:
    said = noetl.json("run", "examples/recovered_failure.yaml")
    assert said["result"] == {"cheapest": "tea", "because": "HTTP_CONNECTION"}
    assert said["steps"]["from_primary"]["status"] == "failed"


def test_a_loop_that_fails_at_its_end_is_retried_where_it_failed(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    said = noetl.json("run", "examples/at_end.yaml", "--set", f"stock={tmp_path}", code=1)
    assert (said["status"], said["error"]["step"], said["error"]["code"]) == (
        "failed",
        "count",
        "LOOP_FAILED",
    )
    assert "2 of 6 items of loop count failed" in said["error"]["message"]
    assert "report" not in said["steps"]
    for shop in ("berlin", "oslo"):
        (tmp_path / f"{shop}.txt").touch()
    for shop in ("athens", "cairo", "lima", "paris"):
        (tmp_path / f"{shop}.txt").unlink()  # nobody reads them again
    again = noetl.json("exec", "retry", "@latest")
    assert (again["status"], again["result"]) == ("completed", {"shops": 6, "items": 8})


def test_somebody_has_to_agree(noetl: NoetlCommand) -> None:
    said = noetl.json("run", "examples/approval.yaml", "--set", "limit=2000")
    assert said["result"] == {"paid": 1030, "approved_by": "the limit"}
    waiting = noetl.start("run", "examples/approval.yaml", "--json")
    until(lambda: noetl.json("exec", "explain", "@latest", "ask")["verdict"] == "waiting")
    assert (
        "an approval (who: finance, amount: 1030)" in noetl("exec", "explain", "@latest", "ask").out
    )
    noetl.json("exec", "approve", "@latest", "ask", "--by", "ada")
    assert noetl.wait(waiting).json["result"] == {"paid": 1030, "approved_by": "ada"}
    waiting = noetl.start("run", "examples/approval.yaml", "--json")
    until(lambda: noetl.json("exec", "get", "@latest")["status"] == "running")
    until(lambda: "ask" in noetl.json("exec", "get", "@latest")["steps"])
    noetl.json("exec", "reject", "@latest", "ask", "--by", "ada", "--comment", "not on a Friday")
    refused = noetl.wait(waiting).json
    assert (refused["status"], refused["steps"]["refuse"]["status"]) == ("completed", "completed")
    assert refused["result"] == {"paid": 0, "why": "the approval was refused: not on a Friday"}


def test_children_are_executions_of_their_own(noetl: NoetlCommand) -> None:
    failed = noetl.json("run", "examples/nested/month.yaml", code=1)
    assert (failed["status"], failed["error"]["code"]) == ("failed", "LOOP_FAILED")
    assert "no playbook 'examples/nested/region'" in failed["error"]["message"]
    noetl.json("catalog", "register", "examples/nested/region.yaml")
    said = noetl.json("run", "examples/nested/month.yaml")
    assert said["result"] == {"regions": 4, "revenue": 940}


@contextmanager
def job_api() -> Iterator[str]:
    """The simulated quantum computer; its address."""
    script = "examples/quantum/jobs.py"
    with subprocess.Popen(
        [sys.executable, script, "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def test_a_sweep_submits_each_job_once_though_answers_are_lost(noetl: NoetlCommand) -> None:
    with job_api() as url:
        said = noetl.json("run", "examples/quantum/sweep.yaml", "--set", f"jobs_url={url}")
        jobs = httpx.get(f"{url}/jobs", trust_env=False).json()["jobs"]
    (report,) = said["result"]["rows"]
    assert report == {"points": 9, "jobs": 9, "lowest_at": 3.141593, "as_theory_says": True}
    assert len(jobs) == 9
    assert sum(job["submitted"] for job in jobs) > 9, (
        "an answer was lost, and its job submitted again"
    )
    events = noetl("exec", "events", said["execution_id"], "--json").out.splitlines()
    issued = [
        event["data"] for event in map(json.loads, events) if event["type"] == "command.issued"
    ]
    assert {event["pool"] for event in issued if event["step"] == "measure"} == {"qpu"}
