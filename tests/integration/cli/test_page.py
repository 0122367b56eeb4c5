"""`noetl ui` and the address of the page after `noetl run`."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

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
    refused = noetl("run", "examples/hello.yaml", "--detach")
    assert (refused.code, "no server runs on this home" in refused.err) == (1, True)
    with run_stack(noetl, workers=1) as stack:
        ran = noetl("run", "examples/hello.yaml")  # in its own process, on the same home
        newest = noetl.json("exec", "get", "@latest")["execution_id"]
        page = f"{stack.url}/executions/{newest}"
        assert ran.out.splitlines()[-1] == f"in a browser: {page}"
        shown = command.json("ui", "@latest")
        assert (shown["url"], shown["opened"]) == (page, True)
        told = command("ui", newest, "--no-open").out.splitlines()
        assert told[0] == f"page at {page}"
        check_link(stack, told[1].rpartition(" ")[2], f"/executions/{newest}")
        assert command("ui").out == f"page at {stack.url}/executions\n"
        links = opened.read_text().split()
        assert links[0] == shown["link"]
        check_link(stack, links[1], "/executions")
        check_other_places(stack, command)
        check_detached_start(stack, noetl)
    assert "in a browser" not in noetl("run", "examples/hello.yaml").out


def check_link(stack: Stack, link: str, page: str) -> None:
    """The link signs a browser in, once, and leads to the page."""
    parts = urlsplit(link)
    query = parse_qs(parts.query)
    assert f"{parts.scheme}://{parts.netloc}{parts.path}" == f"{stack.url}/login"
    assert query["next"] == [page]
    body = {"code": query["code"][0]}
    with httpx.Client(base_url=stack.url, trust_env=False) as browser:
        assert browser.get("/api/executions").status_code == 401
        assert browser.post("/api/session", json=body).status_code == 200
        assert browser.get("/api/executions").status_code == 200
        assert browser.post("/api/session", json=body).status_code == 401


def check_detached_start(stack: Stack, noetl: NoetlCommand) -> None:
    started = noetl.json("run", "examples/hello.yaml", "--set", "name=Ada", "--detach")
    assert started["url"] == f"{stack.url}/executions/{started['execution_id']}"

    def has_completed() -> bool:
        row = noetl.json("exec", "get", started["execution_id"])
        return bool(row["status"] == "completed")

    until(has_completed)
    told = noetl("run", "examples/hello.yaml", "-d").out.splitlines()
    assert [line.partition(" ")[0] for line in told] == ["execution", "page"]
    wrong = noetl("run", "examples/hello.yaml", "--detach", "--memory")
    assert (wrong.code, "--memory and --detach exclude each other" in wrong.err) == (2, True)


def check_other_places(stack: Stack, command: NoetlCommand) -> None:
    asked = stack.client("ui", "--no-open")
    assert asked.out.splitlines()[0] == f"page at {stack.url}/executions"
    wrong = command("ui", "latest")
    assert wrong.code == 2
    assert "'latest' is not an execution id" in wrong.err


def test_without_a_display_the_address_is_printed(noetl: NoetlCommand) -> None:
    with run_stack(noetl) as stack:
        command = noetl.and_env(DISPLAY="", WAYLAND_DISPLAY="", BROWSER="")
        page, link = command("ui").out.splitlines()
        assert page == f"page at {stack.url}/executions"
        check_link(stack, link.rpartition(" ")[2], "/executions")


def list_pools(noetl: NoetlCommand, url: str) -> list[str]:
    headers = noetl.token_header
    workers = httpx.get(f"{url}/api/workers", headers=headers, trust_env=False).json()
    return [pool for worker in workers for pool in worker["pools"]]


def test_without_a_server_it_starts_one(noetl: NoetlCommand, opened: Path, free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    command = with_browser(noetl, opened)
    assert noetl("run", "examples/hello.yaml").code == 0
    with command.keep_running("ui", "@latest", "--port", free_port) as process:
        assert process.stdout is not None
        told = iter(process.stdout)
        assert url in next(told)
        page = next(told).split()[-1]
        assert page.startswith(f"{url}/executions/")
        assert opened.read_text().startswith(f"{url}/login?code=noetl_")
        answer = httpx.get(page, trust_env=False)
        assert answer.is_success
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        until(lambda: "spark" in list_pools(noetl, url))  # those of other tests serve the pool cpu
