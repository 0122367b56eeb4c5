"""The page, its server and a browser. A file of tests has one server, one worker and one browser; a test has a tab of its own."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StackClient, open_stack_client
from tests.e2e.ui.browser import (
    WatchedTab,
    launch_browser,
    require_chromium,
    sign_in,
    skip_or_fail,
)
from tests.stack import ROOT, NoetlCommand, Stack, run_stack, temporary_home
from tests.waiting import until

WINDOW = {"width": 1440, "height": 900}
PICTURES = ROOT / "build" / "pictures"


@pytest.fixture(scope="session")
def chromium() -> str:
    return require_chromium()


@pytest.fixture(scope="session")
def built_page(chromium: str) -> Path:
    """The folder of the built page. Without a browser it is not built. Of several test processes one builds it."""
    command = [sys.executable, str(ROOT / "ui" / "build.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        skip_or_fail(done.stdout)
    return ROOT / "src" / "noetl" / "ui" / "dist"


@pytest.fixture(scope="module")
def ui_stack(built_page: Path) -> Iterator[Stack]:
    """A server with the built page, and a worker."""
    with temporary_home("ui") as home, run_stack(NoetlCommand(home), workers=1) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(ui_stack: Stack) -> Iterator[StackClient]:
    """Asks the server of the page for executions."""
    with open_stack_client(ui_stack) as client:
        until(lambda: len(client.get("/api/workers")) == 1)
        yield client


@pytest.fixture(scope="module")
def browser(chromium: str, client: StackClient) -> Iterator[Any]:
    """One browser per file, which ends before the stack does: what inspects the database needs an event loop."""
    with launch_browser(chromium) as browser:
        yield browser


OpenTab = Callable[..., WatchedTab]


@pytest.fixture
def open_tab(browser: Any, ui_stack: Stack) -> Iterator[OpenTab]:
    """Opens tabs of browsers without history, with options of Playwright. The test fails if anything went wrong in one."""
    tabs: list[WatchedTab] = []

    def open_one(is_signed_in: bool = True, **options: Any) -> WatchedTab:
        context = browser.new_context(**{"base_url": ui_stack.url, "viewport": WINDOW, **options})
        if is_signed_in:
            sign_in(context, ui_stack.command.token)
        tabs.append(WatchedTab(context.new_page()))
        return tabs[-1]

    yield open_one
    problems = [problem for tab in tabs for problem in tab.list_problems()]
    for tab in tabs:
        tab.page.context.close()
    assert problems == []


@pytest.fixture
def tab(open_tab: OpenTab) -> WatchedTab:
    return open_tab()
