"""Jobs as users have them: what commands say before and after events were moved, and what is planted is found."""

from pathlib import Path

import psycopg
import pytest

from noetl.embedded import EmbeddedPostgres
from tests.stack import NoetlCommand, run_stack, write_playbook
from tests.waiting import until

STEPS = """  - step: load
    tool: {kind: python, code: "result = [{'id': n, 'amount': n * 2} for n in range(5)]"}
    next: total
  - step: total
    tool:
      kind: python
      code: "result = {'sum': sum(row['amount'] for row in rows)}"
      input: {rows: "{{ load.rows }}"}
"""


@pytest.fixture
def sparkless(noetl: NoetlCommand) -> NoetlCommand:
    return noetl.with_env(NOETL_SPARK_PROFILE="none")


def answers(client: NoetlCommand, execution: str) -> list[object]:
    return [
        client.json("exec", "get", execution),
        client("exec", "events", execution, "--json").out,
        client.json("exec", "explain", execution, "total"),
        client.json("trace", execution, "total"),
        client.json("result", "show", execution, "total"),
        client.json("exec", "list"),
    ]


def test_every_command_answers_the_same_when_events_are_in_files(
    sparkless: NoetlCommand, tmp_path: Path
) -> None:
    done = sparkless.json("run", write_playbook(tmp_path, "sums", STEPS))
    assert done["status"] == "completed"
    before = answers(sparkless, done["execution_id"])
    assert sparkless.json("job", "export")["events"] > 0
    moved = sparkless.json("job", "compact", "--days", "0")
    assert (moved["executions"], moved["files"]) == (1, 1)
    assert answers(sparkless, done["execution_id"]) == before
    assert sparkless.json("job", "export")["events"] == 0
    assert sparkless("verify").code == 0
    assert sparkless("verify", done["execution_id"]).code == 0


def test_a_planted_difference_is_found_and_mended(sparkless: NoetlCommand, tmp_path: Path) -> None:
    done = sparkless.json("run", write_playbook(tmp_path, "sums", STEPS))
    embedded = EmbeddedPostgres(sparkless.home)
    with psycopg.connect(embedded.ensure_postgres().control) as connection:
        connection.execute(
            "update noetl.execution set steps = 7 where execution_id = %s", [done["execution_id"]]
        )
    embedded.stop_postgres()
    found = sparkless("verify")
    assert found.code == 1
    assert found.out.splitlines()[1].split() == [done["execution_id"], "steps", "7", "2"]
    assert sparkless.json("job", "rebuild")["written"] == 1
    assert sparkless("verify").code == 0


def test_sql_without_spark_says_what_to_do(sparkless: NoetlCommand) -> None:
    refused = sparkless("sql", "select 1")
    assert refused.code == 2
    assert "NOETL_SPARK_PROFILE" in refused.err


def test_a_server_compacts_by_itself_when_it_is_told_to(
    sparkless: NoetlCommand, tmp_path: Path
) -> None:
    done = sparkless.json("run", write_playbook(tmp_path, "sums", STEPS))
    server = sparkless.and_env(NOETL_COMPACTOR_ENABLED="true", NOETL_RETENTION_DAYS="0")
    with run_stack(server):
        embedded = EmbeddedPostgres(sparkless.home)
        with psycopg.connect(embedded.ensure_postgres().control, autocommit=True) as connection:
            moved = "select exists (select from noetl.tombstone where execution_id = %s)"
            until(lambda: connection.execute(moved, [done["execution_id"]]).fetchone() == (True,))
        embedded.stop_postgres()
    assert sparkless("verify", done["execution_id"]).code == 0
