"""`noetl ui` and the address of the page after `noetl run`."""

from pathlib import Path

import httpx
import pytest

from tests.stack import NoetlCommand, Stack, run_stack
from tests.waiting import until


@pytest.fixture
def opened(tmp_path: Path) -> Path:
    """Where the browser of these tests writes the addresses that it is to open."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path / "opened"}\n')
    browser.chmod(0o755)
    return tmp_path / "opened"


def with_browser(noetl: NoetlCommand, opened: Path) -> NoetlCommand:
    return noetl.and_env(BROWSER=str(opened.with_name("browser")))


def test_commands_lead_to_the_page_of_a_server_of_the_same_home(
    noetl: NoetlCommand, opened: Path
) -> None:
    command = with_browser(noetl, opened)
    alone = noetl("run", "examples/hello.yaml")
    assert "in a browser" not in alone.out
    with run_stack(noetl, workers=1) as stack:
        ran = noetl("run", "examples/hello.yaml")  # in its own process, on the same home
        newest = noetl.json("exec", "get", "@latest")["execution_id"]
        page = f"{stack.url}/executions/{newest}"
        assert ran.out.splitlines()[-1] == f"in a browser: {page}"
        assert command.json("ui", "@latest") == {"url": page, "opened": True}
        assert command("ui", newest, "--no-open").out == f"page at {page}\n"
        assert command("ui").out == f"page at {stack.url}/executions\n"
        assert opened.read_text().split() == [page, f"{stack.url}/executions"]
        check_other_places(stack, command)
    assert "in a browser" not in noetl("run", "examples/hello.yaml").out


def check_other_places(stack: Stack, command: NoetlCommand) -> None:
    asked = stack.client("ui", "--no-open")
    assert asked.out == f"page at {stack.url}/executions\n"
    wrong = command("ui", "latest")
    assert wrong.code == 2
    assert "'latest' is not an execution id" in wrong.err


def test_without_a_display_the_address_is_printed(noetl: NoetlCommand) -> None:
    with run_stack(noetl) as stack:
        command = noetl.and_env(DISPLAY="", WAYLAND_DISPLAY="", BROWSER="")
        told = f"page at {stack.url}/executions   open it in a browser\n"
        assert command("ui").out == told


def list_pools(url: str) -> list[str]:
    workers = httpx.get(f"{url}/api/workers", trust_env=False).json()
    return [pool for worker in workers for pool in worker["pools"]]


def test_without_a_server_it_starts_one(noetl: NoetlCommand, opened: Path, free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    command = with_browser(noetl, opened)
    with command.keep_running("ui", "@latest", "--port", free_port) as process:
        assert process.stdout is not None
        told = iter(process.stdout)
        assert url in next(told)
        page = next(told).split()[-1]
        assert page.startswith(f"{url}/executions/")
        assert opened.read_text() == f"{page}\n"
        answer = httpx.get(page, trust_env=False)
        assert answer.is_success
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        until(lambda: "spark" in list_pools(url))  # those of other tests serve the pool cpu
