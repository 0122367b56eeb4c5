"""`noetl sql` and `noetl job stats` as users have them, with Spark."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from noetl.spark.jobs.lake_objects import ObjectLake
from tests import s3
from tests.postgres import scratch
from tests.stack import NoetlCommand, write_playbook

STEPS = """  - step: load
    tool: {kind: python, code: "result = [{'id': n, 'amount': n * 2} for n in range(5)]"}
"""


@pytest.fixture
def noetl(spark_url: str) -> Iterator[NoetlCommand]:
    home = Path(tempfile.mkdtemp(dir=scratch(), prefix="noetl-test-jobs-"))
    yield NoetlCommand(home).with_env(NOETL_SPARK_PROFILE=spark_url)
    shutil.rmtree(home, ignore_errors=True)


def test_sql_joins_the_log_with_the_rows_of_a_result(noetl: NoetlCommand, tmp_path: Path) -> None:
    done = noetl.json("run", write_playbook(tmp_path, "amounts", STEPS))
    asked = noetl("sql", "select sum(amount) as total from orders", "--with", "orders=@latest/load")
    assert asked.code == 0, asked.err
    assert asked.out.split() == ["total", "20"]
    question = "select x.execution_id, count(*) as n from executions x join events using (execution_id) group by all"
    before = noetl("sql", question, "--json")
    assert before.json["execution_id"] == done["execution_id"]
    assert noetl.json("job", "compact", "--days", "0")["executions"] == 1
    assert noetl("sql", question, "--json").out == before.out
    assert noetl("job", "stats", "--json").out.count("\n") == 2
    wrong = noetl("sql", "select * from nowhere")
    assert (wrong.code, "nowhere" in wrong.err, "executions" in wrong.err) == (2, True, True)


def test_doctor_says_that_compacted_history_cannot_be_read(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    noetl.json("run", write_playbook(tmp_path, "amounts", STEPS))
    noetl.json("job", "compact", "--days", "0")

    def get_history_status() -> str:
        return next(
            each["status"] for each in noetl("doctor", "--json").json if each["check"] == "history"
        )

    lake = noetl.home / "results" / "lake"
    assert get_history_status() == "ok"
    lake.rename(lake.with_name("away"))
    assert get_history_status() == "error"
    lake.with_name("away").rename(lake)
    assert get_history_status() == "ok"


def test_history_is_compacted_to_the_object_store_of_results_and_read_from_there(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    place = s3.server().place()
    settings = s3.server().settings(place)
    cloud = noetl.and_env(**settings)
    done = cloud.json("run", write_playbook(tmp_path, "amounts", STEPS))
    question = "select execution_id, count(*) as n from events group by all"
    events, before = (
        cloud("exec", "events", done["execution_id"]).out,
        cloud("sql", question, "--json").out,
    )
    assert cloud.json("job", "export")["events"] > 0
    assert cloud.json("job", "compact", "--days", "0")["executions"] == 1
    kept = ObjectLake(lambda: s3.server().connect_bucket(f"{place}/lake"), place)
    assert len(kept.list_files("cold/")) == 1
    assert len([path for path in kept.list_files("events/") if "/day=" in path]) == 1
    assert not list(noetl.home.rglob("lake"))
    assert cloud("exec", "events", done["execution_id"]).out == events
    assert cloud("sql", question, "--json").out == before
    assert (cloud("verify").code, cloud("verify", done["execution_id"]).code) == (0, 0)

    def history(process: NoetlCommand) -> tuple[str, str]:
        found = process("doctor", "--json").json
        return next(
            (each["status"], each["message"]) for each in found if each["check"] == "history"
        )

    assert history(cloud)[0] == "ok"
    status, found = history(cloud.and_env(AWS_SECRET_ACCESS_KEY="wrong"))
    assert (status, f"{place}/lake refuses" in found) == ("error", True)
    status, found = history(noetl)
    assert (status, "cannot be read here" in found) == ("error", True)


def test_sql_shows_what_it_finds_and_says_what_is_wrong_once(noetl: NoetlCommand) -> None:
    doubled = noetl("sql", "select 1 as a, map('k', true) as a")
    assert (doubled.code, doubled.out.splitlines()) == (0, ["a  a", '1  {"k": true}'])
    assert noetl.json("sql", "select double('nan') as x, x'00' as y") == {"x": "nan", "y": "AA=="}
    for question in ("select * from nowhere", "select 1/0"):
        wrong = noetl("sql", question)
        assert (wrong.code, wrong.err.startswith("error: ["), "JVM" in wrong.err) == (
            2,
            True,
            False,
        )


def test_sql_takes_questions_alone(noetl: NoetlCommand) -> None:
    for statement in (
        "drop table events",
        "with x as (select 1) insert into zz select * from x",
        "create table zz as select 1",
    ):
        refused = noetl("sql", statement)
        assert (refused.code, refused.out, "noetl sql reads" in refused.err) == (2, "", True)
    tables = noetl("sql", "show tables").out.splitlines()[1:]
    assert [line.split() for line in tables] == [
        ["events", "true"],
        ["executions", "true"],
        ["results", "true"],
    ]
    assert noetl(
        "sql", "with x as (select 3 as n union all select 4) from x order by n desc"
    ).out.split() == [
        "n",
        "4",
        "3",
    ]


def test_sql_keeps_its_own_tables_from_rows_that_are_given(noetl: NoetlCommand) -> None:
    for given in (["Events=@latest/load"], ["a=@latest/load", "A=@latest/load"]):
        refused = noetl("sql", "select 1", *(part for each in given for part in ("--with", each)))
        assert (refused.code, given[-1] in refused.err, "another name" in refused.err) == (
            2,
            True,
            True,
        )
