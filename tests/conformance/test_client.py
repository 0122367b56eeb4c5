"""One suite for the client over HTTP, against a real server, and in this process. Both on the embedded Postgres."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from noetl.client import (
    AsyncClient,
    Client,
    Conflict,
    ExecutionFailed,
    InvalidInput,
    NotFound,
    WaitTimeout,
)
from tests.postgres import scratch
from tests.processes import free_port
from tests.stack import ROOT, NoetlCommand, inspect_home, wait_until_ready
from tests.waiting import HANG_LIMIT_S

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {0}, path: client/{0}}}\n"
GREET = (
    HEAD.format("greet")
    + """
workload: {name: Ada}
workflow:
  - step: greet
    tool:
      kind: python
      input: {name: "{{ workload.name }}"}
      code: |
        print(f"greeting {name}")
        result = {"text": f"Hello, {name}!"}
"""
)
ROWS = (
    HEAD.format("rows")
    + """
workflow:
  - step: typed
    tool:
      kind: duckdb
      query: select i::bigint as id, (i * 1.5)::decimal(10, 2) as price from range(3) t(i)
    next: plain
  - step: plain
    tool: {kind: python, code: "result = [{'id': 1, 'name': 'a'}, {'id': 2, 'name': 'b'}]"}
    next: scalar
  - step: scalar
    tool: {kind: python, code: "result = 42"}
"""
)
FAILS = (
    HEAD.format("fails")
    + """
workload: {broken: true}
workflow:
  - step: first
    tool: {kind: noop}
    next: breaks
  - step: breaks
    tool:
      kind: python
      input: {broken: "{{ workload.broken }}"}
      code: |
        if broken:
            raise ValueError("no luck")
        result = 1
"""
)
WAITS = (
    HEAD.format("waits")
    + """
workflow:
  - step: approval
    tool: {kind: wait, signal: go}
    next: after
  - step: after
    tool: {kind: python, input: {text: "{{ approval }}"}, code: "result = text"}
"""
)


def make_home() -> Path:
    return Path(tempfile.mkdtemp(dir=scratch(), prefix="noetl-test-client-"))


@contextmanager
def open_over_http(home: Path) -> Iterator[Client]:
    folder = home / "playbooks"
    folder.mkdir()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with NoetlCommand(home).keep_running("dev", folder, "--port", port):
        wait_until_ready(url)
        with Client(url, token=NoetlCommand(home).token) as client:
            yield client


@contextmanager
def open_in_process(home: Path) -> Iterator[Client]:
    with Client(home=home) as client:
        yield client


@pytest.fixture(scope="module", params=[open_over_http, open_in_process], ids=["http", "local"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """One home for the whole suite: making a database takes longer than the tests do."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("NOETL_")}
    for name in settings:
        del os.environ[name]
    home = make_home()
    try:
        with request.param(home) as opened:
            for playbook in (GREET, ROWS, FAILS, WAITS):
                opened.register(playbook)
            yield opened
        inspect_home(home)
    finally:
        os.environ.update(settings)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def rows(client: Client) -> str:
    """An execution of the playbook that leaves rows and a number."""
    return client.run("client/rows", timeout=HANG_LIMIT_S).execution_id


# -- playbooks --


def test_registered_playbook_is_listed_and_has_its_text(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(GREET.replace("client/greet", "client/new"))
    first, second = client.register(file), client.register(file)
    assert (first.path, first.version, first.created) == ("client/new", 1, True)
    assert (second.version, second.created) == (1, False)
    changed = client.register(file.read_text() + "# changed\n")
    assert changed.version == 2
    listed = {each.path: each.version for each in client.list_playbooks("client/n")}
    assert listed == {"client/new": 2}
    assert client.get_playbook("client/new", 1).content == file.read_text()
    assert client.get_playbook("client/new").version == 2


def test_invalid_playbook_is_refused_with_its_findings(client: Client) -> None:
    with pytest.raises(InvalidInput, match="nowhere"):
        client.register(GREET + "    next: nowhere\n")


def test_unknown_names_are_not_found(client: Client) -> None:
    with pytest.raises(NotFound):
        client.get_playbook("client/nothing")
    with pytest.raises(NotFound):
        client.start("client/nothing")
    unknown = "999999999999"
    with pytest.raises(NotFound):
        client.get_execution(unknown)
    with pytest.raises(NotFound):
        client.wait(unknown)
    with pytest.raises(NotFound):
        list(client.stream_events(unknown))
    with pytest.raises(NotFound):
        client.read_result(unknown, "greet")


# -- executions --


def test_execution_runs_to_its_end_and_its_result_is_read(client: Client) -> None:
    execution_id = client.start("client/greet", {"name": "Grace"})
    report = client.wait(execution_id, HANG_LIMIT_S)
    assert (report.status, report.path, report.version) == ("completed", "client/greet", 1)
    assert report.workload == {"name": "Grace"}
    assert report.started_at is not None
    assert report.ended_at is not None
    assert report.started_at <= report.ended_at
    assert report.steps["greet"].status == "completed"
    report.raise_if_failed()
    assert client.read_result(execution_id, "greet") == {"text": "Hello, Grace!"}
    with pytest.raises(NotFound):
        client.read_result(execution_id, "another")


def test_start_with_a_known_key_returns_the_same_execution(client: Client) -> None:
    first = client.start("client/greet", {"name": "Key"}, key="once")
    assert client.start("client/greet", {"name": "Key"}, key="once") == first
    with pytest.raises(Conflict, match="this key has started execution"):
        client.start("client/greet", {"name": "Another"}, key="once")


def test_executions_are_listed_newest_first(client: Client) -> None:
    ids = [client.run("client/greet", timeout=HANG_LIMIT_S).execution_id for _ in range(3)]
    listed = client.list_executions(path="client/greet", status="completed", limit=3)
    assert [each.execution_id for each in listed] == ids[::-1]
    assert all(each.has_ended for each in listed)
    before = client.list_executions(path="client/greet", before=ids[1], limit=1)
    assert before[0].execution_id == ids[0]


def test_failure_names_step_and_code(client: Client) -> None:
    report = client.wait(client.start("client/fails"), HANG_LIMIT_S)
    assert report.status == "failed"
    assert report.failure is not None
    assert report.failure.step == "breaks"
    with pytest.raises(ExecutionFailed, match=r"step breaks.*no luck") as raised:
        report.raise_if_failed()
    assert raised.value.execution_id == report.execution_id
    assert (raised.value.status, raised.value.step) == ("failed", "breaks")
    assert raised.value.failure_code == report.failure.code
    with pytest.raises(ExecutionFailed):
        client.run("client/fails", timeout=HANG_LIMIT_S)


def test_failed_execution_is_retried_and_rerun(client: Client) -> None:
    failed = client.wait(client.start("client/fails"), HANG_LIMIT_S)
    retry = client.wait(client.retry(failed.execution_id), HANG_LIMIT_S)
    assert (retry.status, retry.retry_of) == ("failed", failed.execution_id)
    rerun = client.wait(client.rerun(failed.execution_id, "breaks"), HANG_LIMIT_S)
    assert rerun.status == "failed"
    assert rerun.execution_id not in (failed.execution_id, retry.execution_id)


def test_waiting_ends_in_time_and_a_signal_lets_it_go_on(client: Client) -> None:
    execution_id = client.start("client/waits")
    with pytest.raises(WaitTimeout) as raised:
        client.wait(execution_id, timeout=0.05)
    assert isinstance(raised.value, TimeoutError)
    client.pause(execution_id)
    client.resume(execution_id)
    client.send_signal(execution_id, "go", {"by": "Ada"})
    assert client.wait(execution_id, HANG_LIMIT_S).status == "completed"
    assert "Ada" in str(client.read_result(execution_id, "after"))


def test_cancelled_execution_cannot_be_cancelled_again(client: Client) -> None:
    execution_id = client.start("client/waits")
    client.cancel(execution_id)
    report = client.wait(execution_id, HANG_LIMIT_S)
    assert report.status == "cancelled"
    with pytest.raises(ExecutionFailed, match="cancelled"):
        report.raise_if_failed()
    with pytest.raises(Conflict):
        client.cancel(execution_id)


# -- events and logs --


def test_events_are_streamed_to_the_end(client: Client) -> None:
    execution_id = client.start("client/greet")
    streamed = list(client.stream_events(execution_id))
    assert streamed[-1].type == "playbook.completed"
    numbers = [each.seq for each in streamed]
    assert numbers == sorted(set(numbers))
    assert streamed == client.list_events(execution_id)
    assert streamed[2:] == client.list_events(execution_id, after=numbers[1])
    assert list(client.stream_events(execution_id, after=streamed[-1].seq)) == []
    entered = [each for each in streamed if each.type == "step.enter"]
    assert [each.data["step"] for each in entered] == ["greet"]


def test_printed_lines_are_streamed(client: Client) -> None:
    execution_id = client.start("client/greet", {"name": "Logs"})
    followed = list(client.stream_logs(execution_id, follow=True))
    assert [(each.step, each.line, each.stream) for each in followed] == [
        ("greet", "greeting Logs", "stdout")
    ]
    assert list(client.stream_logs(execution_id, "greet")) == followed
    assert list(client.stream_logs(execution_id, "another")) == []


# -- results --


def test_rows_are_read_as_arrow_with_their_types(client: Client, rows: str) -> None:
    table = client.read_arrow(rows, "typed")
    assert table.schema.field("id").type == pyarrow.int64()
    assert pyarrow.types.is_decimal(table.schema.field("price").type)
    assert table.column("id").to_pylist() == [0, 1, 2]


def test_json_rows_are_read_as_arrow_and_as_values(client: Client, rows: str) -> None:
    values = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    assert client.read_arrow(rows, "plain").to_pylist() == values
    assert client.read_result(rows, "plain") == values


def test_value_without_rows_is_no_table(client: Client, rows: str) -> None:
    assert client.read_result(rows, "scalar") == 42
    with pytest.raises(InvalidInput, match="no rows") as refused:
        client.read_arrow(rows, "scalar")
    assert refused.value.hint == "read all of it, in the format json"


def test_result_is_saved_to_a_file(client: Client, rows: str, tmp_path: Path) -> None:
    client.save_result(rows, "typed", tmp_path / "rows.parquet", "parquet")
    assert parquet.read_table(tmp_path / "rows.parquet").num_rows == 3
    client.save_result(rows, "plain", tmp_path / "rows.csv", "csv")
    assert (tmp_path / "rows.csv").read_text().splitlines() == ["id,name", "1,a", "2,b"]


def test_other_operations_are_called_by_their_rows(client: Client) -> None:
    client.call_rows(lambda api: api.set_state("client/greet", "mark", 7, None))
    row = client.call_rows(lambda api: api.get_state_value("client/greet", "mark"))
    assert row["value"] == 7


# -- opening --


def test_a_second_client_of_the_home_sees_what_the_first_did(tmp_path: Path) -> None:
    home = make_home()

    async def run_one() -> str:
        async with AsyncClient(home=home) as first:
            await first.register(GREET)
            report = await first.run("client/greet", timeout=HANG_LIMIT_S)
            return report.execution_id

    try:
        execution_id = asyncio.run(run_one())
        reader = Client(home=home, need="read")
        assert reader.get_execution(execution_id).status == "completed"
        assert reader.read_result(execution_id, "greet") == {"text": "Hello, Ada!"}
        reader.close()
        reader.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_first_example_of_the_documentation_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "client.md").read_text()
    example = text.partition("```python\n")[2].partition("```")[0]
    home = make_home()
    monkeypatch.setenv("NOETL_HOME", str(home))
    monkeypatch.delenv("NOETL_SERVER_URL", raising=False)
    monkeypatch.delenv("NOETL_DB_URL", raising=False)
    monkeypatch.chdir(ROOT)
    try:
        exec(compile(example, "client.md", "exec"), {})
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert capsys.readouterr().out == "completed {'text': 'Hello, Ada!'}\n"
