"""The page opens in a browser, under its policy."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from noetl.server.pages.answers import PageAnswers
from tests.e2e.conftest import StackClient
from tests.e2e.ui.browser import WatchedTab

GREET = "  - {step: greet, tool: {kind: python, code: 'result = 7'}}\n"


def test_the_list_of_executions_opens(tab: WatchedTab, client: StackClient) -> None:
    ended = client.run(GREET)
    answer = tab.page.goto("/executions")
    assert answer.status == 200
    tab.page.wait_for_selector(f"text={ended['path']}")
    assert "NoETL" in tab.page.title()


def test_an_execution_opens_by_its_address(tab: WatchedTab, client: StackClient) -> None:
    ended = client.run(GREET)
    tab.page.goto(f"/executions/{ended['execution_id']}")
    tab.page.wait_for_selector("text=greet")


def test_text_does_not_become_markup(tab: WatchedTab) -> None:
    """The policy refuses what a mistake of the page would allow."""
    tab.page.goto("/executions")
    refused = tab.page.evaluate(
        """() => { try { document.body.innerHTML = '<img src=x onerror=alert(1)>'; return 'taken' }
                   catch (error) { return error.name } }"""
    )
    assert refused == "TypeError"
    [violation] = tab.page.evaluate("window.policyViolations.splice(0)")
    assert violation.startswith("require-trusted-types-for")
    tab.errors.clear()  # the console names the same


def test_frames_are_refused(tab: WatchedTab) -> None:
    tab.page.goto("/executions")
    tab.page.evaluate(
        """() => { const frame = document.createElement('iframe'); frame.src = 'http://127.0.0.1:1/';
                   document.body.append(frame) }"""
    )
    tab.page.wait_for_function("window.policyViolations.length > 0")
    violations = tab.page.evaluate("window.policyViolations.splice(0)")
    assert all(each.startswith(("frame-src", "default-src")) for each in violations)
    tab.errors.clear()


def test_a_page_that_is_not_built_says_so_under_the_same_policy(
    tab: WatchedTab, tmp_path: Path
) -> None:
    answer = answer_without_page(tmp_path)
    told = {"status": answer.status_code, "headers": dict(answer.headers), "body": answer.body}
    tab.page.route("**/not-built", lambda route: route.fulfill(**told))
    tab.page.goto("/not-built")
    assert tab.page.inner_text("h1") == "The page is not built yet"
    width = tab.page.evaluate("getComputedStyle(document.body).maxWidth")
    assert width == "600px"  # the style of the answer is in force


def answer_without_page(folder: Path) -> Response:
    """In a thread: the event loop of this one is Playwright's."""
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": []}
    answering = PageAnswers(folder / "none").answer_page(Request(scope))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, answering).result()
