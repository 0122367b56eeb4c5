"""The views of the older documents, asked with the queries that those documents print, after real executions."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from noetl.embedded import EmbeddedPostgres
from tests.stack import NoetlCommand, write_playbook
from tests.waiting import until

STEPS = """\
  - step: each
    loop: {in: "{{ [1, 2, 3] }}", iterator: item, mode: parallel}
    tool: {kind: python, args: {n: "{{ item }}"}, code: "result = n"}
    next: last
  - step: last
    tool: {kind: python, code: "result = 7"}
"""
BROKEN = """\
  - step: bad
    tool: {kind: python, code: "result = 1 / 0"}
"""
WAITING = """\
  - step: pause
    tool: {kind: wait, signal: go}
"""

# As they are printed.
RESULTS = """
            SELECT node_name, result 
            FROM noetl.event_log 
            WHERE execution_id = %s AND event_type = 'action_completed'
"""  # noqa: W291
EXPECTED = """
SELECT COUNT(*) as expected 
FROM noetl.queue 
WHERE execution_id = %s AND node_id LIKE %s
"""  # noqa: W291
COMPLETED = """
SELECT COUNT(*) as completed
FROM noetl.event_log 
WHERE execution_id = %s AND node_name = %s 
AND event_type = 'action_completed'
"""  # noqa: W291
STUCK = """
-- Find stuck executions
SELECT execution_id FROM noetl.event_log 
WHERE event_type = 'execution_start' 
AND execution_id NOT IN (
    SELECT execution_id FROM noetl.event_log 
    WHERE event_type = 'execution_completed'
);
"""  # noqa: W291
DEPTHS = (
    "SELECT COUNT(*) FROM noetl.queue WHERE status = 'queued'",
    "SELECT COUNT(*) FROM noetl.queue WHERE status = 'leased'",
)
UTILIZATION = (
    "SELECT worker_id, COUNT(*) FROM noetl.queue WHERE status = 'leased' GROUP BY worker_id"
)
WORKLOAD = "SELECT data FROM noetl.workload WHERE execution_id = %s"


@pytest.fixture
def database(noetl: NoetlCommand) -> Iterator["psycopg.Connection[Any]"]:
    embedded = EmbeddedPostgres(noetl.home)
    with psycopg.connect(embedded.ensure_postgres().control, autocommit=True) as connection:
        yield connection
    embedded.stop_postgres()


def test_printed_queries_find_what_was_completed(
    noetl: NoetlCommand, database: "psycopg.Connection[Any]", tmp_path: Path
) -> None:
    execution_id = noetl.json("run", write_playbook(tmp_path, "sums", STEPS), "--set", "n=1")[
        "execution_id"
    ]
    results = database.execute(RESULTS, [execution_id]).fetchall()
    assert {name for name, _ in results} == {"each", "last"}
    assert {result["status"] for _, result in results} == {"ok"}
    for step in ("each", "last"):
        expected = database.execute(EXPECTED, [execution_id, f"{step}%"]).fetchone()
        assert database.execute(COMPLETED, [execution_id, step]).fetchone() == expected != (0,)
    assert database.execute(WORKLOAD, [execution_id]).fetchone() == ({"n": 1},)
    for query in DEPTHS:
        assert database.execute(query).fetchone() == (0,)
    assert database.execute(UTILIZATION).fetchall() == []


def test_the_log_has_the_printed_names_once(
    noetl: NoetlCommand, database: "psycopg.Connection[Any]", tmp_path: Path
) -> None:
    execution_id = noetl.json("run", write_playbook(tmp_path, "once", STEPS))["execution_id"]
    query = """
        select event_type, node_name, node_type, "timestamp" from noetl.event_log where execution_id = %s
        order by seq, "timestamp", event_type desc
    """
    rows = database.execute(query, [execution_id]).fetchall()
    assert (rows[0][:3], rows[-1][:3]) == (
        ("execution_start", "once", "playbook"),
        ("execution_completed", "once", "playbook"),
    )
    last = [(name, kind) for name, node, kind, _ in rows if node == "last"]
    assert last == [
        ("step.enter", "step"), ("command.issued", "step"), ("action_started", "task"), ("action_completed", "task"),
        ("call.done", "step"), ("result", "step"), ("next.evaluated", "step"),
    ]  # fmt: skip
    times = {name: at for name, node, _, at in rows if node == "last"}
    assert times["action_started"] <= times["action_completed"]
    loop = Counter(name for name, node, _, _ in rows if node == "each")
    assert (loop["loop_started"], loop["loop_completed"], loop["result"]) == (1, 1, 1)
    assert loop["action_started"] == loop["action_completed"] == loop["command.issued"]


def test_an_execution_is_stuck_until_it_ends_in_whatever_way(
    noetl: NoetlCommand, database: "psycopg.Connection[Any]", tmp_path: Path
) -> None:
    failed = noetl.json("run", write_playbook(tmp_path, "broken", BROKEN), code=1)["execution_id"]
    query = """
        select event_type from noetl.event_log where execution_id = %s and node_type = 'task'
        order by "timestamp", event_type desc
    """
    assert database.execute(query, [failed]).fetchall() == [("action_started",), ("action_error",)]
    waiting = noetl.start("run", write_playbook(tmp_path, "waiting", WAITING), "--json")
    until(lambda: len(database.execute(STUCK).fetchall()) == 1)
    until(lambda: noetl.json("exec", "get", "@latest")["execution_id"] != failed)  # its row follows
    assert noetl("exec", "cancel", "@latest").code == 0
    cancelled = noetl.wait(waiting).json
    assert cancelled["status"] == "cancelled"
    assert database.execute(STUCK).fetchall() == []
