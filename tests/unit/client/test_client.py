"""What both clients share, and how they refuse wrong use. What they do is in tests/conformance/test_client.py."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from noetl.client import (
    AsyncClient,
    Client,
    ExecutionFailed,
    ExecutionReport,
    InvalidInput,
    Unavailable,
)


def list_methods(client: type) -> dict[str, Callable[..., Any]]:
    functions = inspect.getmembers(client, inspect.isfunction)
    return {name: method for name, method in functions if not name.startswith("_")}


def test_both_clients_have_the_same_methods_parameters_and_words() -> None:
    blocking, asynchronous = list_methods(Client), list_methods(AsyncClient)
    assert set(blocking) - set(asynchronous) == {"close", "call_rows"}
    for name, method in asynchronous.items():
        assert inspect.signature(method).parameters == inspect.signature(blocking[name]).parameters
        assert inspect.getdoc(method) == inspect.getdoc(blocking[name])
    assert inspect.signature(Client) == inspect.signature(AsyncClient)


def test_a_client_has_a_server_or_a_home() -> None:
    with pytest.raises(InvalidInput, match="not both"):
        Client("http://127.0.0.1:1", home="/nowhere")


def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(InvalidInput, match="not open"):
        _ = AsyncClient("http://127.0.0.1:1").rows


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(Unavailable) as failed:
        client.list_playbooks()
    assert "noetl server start" in str(failed.value.hint)
    assert "NOETL_SERVER_URL" not in str(failed.value.hint), "the caller gave the address"


@pytest.mark.parametrize("url", ["nowhere", "ftp://127.0.0.1", "http://[::1"])
def test_text_that_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="not the address of a server"), Client(url) as client:
        client.list_playbooks()


def test_report_ignores_fields_of_newer_servers_and_fills_those_of_older_ones() -> None:
    row = {
        "execution_id": "1",
        "path": "a",
        "status": "running",
        "started_at": "2026-01-02T03:04:05Z",
    }
    report = msgspec.convert({**row, "added_later": 1}, ExecutionReport)
    assert report.started_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (report.steps, report.failure, report.has_ended) == ({}, None, False)
    report.raise_if_failed()  # it runs


def test_quarantine_is_a_failure() -> None:
    report = ExecutionReport(execution_id="1", path="a", status="quarantined")
    with pytest.raises(ExecutionFailed, match="quarantined"):
        report.raise_if_failed()


def test_import_loads_neither_a_server_nor_arrow() -> None:
    program = "import sys, noetl.client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    heavy = {
        "pyarrow",
        "asyncpg",
        "fastapi",
        "starlette",
        "noetl.server",
        "noetl.worker",
        "noetl.cli",
    }
    assert not heavy & set(loaded.stdout.split())
