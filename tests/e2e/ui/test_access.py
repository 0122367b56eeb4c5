"""Everybody can use the pages: rules of axe in both themes, and everything by keyboard."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StackClient
from tests.e2e.ui.browser import WatchedTab
from tests.e2e.ui.conftest import WINDOW, OpenTab
from tests.e2e.ui.samples import APPROVAL, read_region, run_score

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PHONE = {"width": 390, "height": 844}
MAX_TABS = 60  # presses of the key until everything on a page had the focus


@pytest.fixture(scope="module")
def axe() -> str:
    """The text of axe-core. The tests inject it, which the policy of the pages would refuse."""
    package = pytest.importorskip("axe_playwright_python")
    return (Path(package.__file__).parent / "axe.min.js").read_text()


@pytest.fixture(scope="module")
def failed_execution(client: StackClient) -> str:
    return run_score(client, 200, [7, 30])


@pytest.fixture(scope="module")
def waiting_execution(client: StackClient) -> str:
    execution = client.start(client.register(APPROVAL))
    client.comes(execution, "command.parked")
    return execution


def list_violations(tab: WatchedTab, axe: str, within: str = "html") -> list[str]:
    """The rules that what is within this element of the page breaks."""
    tab.page.evaluate(f"{axe}; 0")
    found: dict[str, Any] = tab.page.evaluate(
        "([within, rules]) => window.axe.run(within, {runOnly: rules})", [within, RULES]
    )
    return [
        f"{tab.page.url}: {each['id']} {each['help']}: {node['html'][:200]} {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_the_sign_in_page(open_tab: OpenTab, axe: str, theme: str) -> None:
    tab = open_tab(is_signed_in=False, color_scheme=theme, bypass_csp=True)
    tab.page.goto("/login")
    tab.page.get_by_label("token").wait_for()
    assert list_violations(tab, axe) == []


TABS = ["items", "data", "vars", "logs", "attempts", "lineage", "playbook"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_the_pages(
    open_tab: OpenTab, axe: str, failed_execution: str, waiting_execution: str, theme: str
) -> None:
    tab = open_tab(color_scheme=theme, bypass_csp=True)
    found: list[str] = []
    tab.page.goto("/executions")
    read_region(tab, "waits for you").wait_for()
    found += list_violations(tab, axe)
    tab.page.goto(f"/executions/{waiting_execution}")
    read_region(tab, "waits for you").wait_for()
    found += list_violations(tab, axe)
    for number, name in enumerate(TABS):
        tab.page.goto(f"/executions/{failed_execution}?step=score&tab={name}&event=1")
        read_region(tab, "failure").wait_for()
        tab.page.get_by_role("tabpanel").wait_for()
        tab.page.wait_for_load_state("networkidle")
        # The rest of the page is the same with every tab.
        found += list_violations(tab, axe, "[role=tabpanel]" if number else "html")
    assert found == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_a_phone(
    open_tab: OpenTab, axe: str, failed_execution: str, theme: str
) -> None:
    tab = open_tab(color_scheme=theme, bypass_csp=True, viewport=PHONE)
    found: list[str] = []
    for address in ["/executions", f"/executions/{failed_execution}"]:
        tab.page.goto(address)
        tab.page.locator("h1").first.wait_for()
        tab.page.wait_for_load_state("networkidle")
        found += list_violations(tab, axe)
        assert measure_overflow(tab) <= 0
    assert found == []


def measure_overflow(tab: WatchedTab) -> int:
    """By how many pixels the page is wider than its window."""
    return int(tab.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def test_pages_fit_a_window_of_320_pixels(open_tab: OpenTab, failed_execution: str) -> None:
    """That is also a window of 640 pixels at a zoom of 200 %."""
    tab = open_tab(viewport={**WINDOW, "width": 320})
    for address in ["/executions", f"/executions/{failed_execution}"]:
        tab.page.goto(address)
        tab.page.wait_for_load_state("networkidle")
        assert measure_overflow(tab) <= 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("button", ["Retry failed", "Rerun…", "search or run a command"])
def test_axe_finds_nothing_in_dialogs(
    open_tab: OpenTab, axe: str, failed_execution: str, theme: str, button: str
) -> None:
    tab = open_tab(color_scheme=theme, bypass_csp=True)
    tab.page.goto(f"/executions/{failed_execution}")
    tab.page.get_by_role("button", name=button).click()
    tab.page.get_by_role("dialog").wait_for()
    tab.page.wait_for_load_state("networkidle")
    assert list_violations(tab, axe) == []


# ---- by keyboard alone -----------------------------------------------------------------------------------------------


def go_to(tab: WatchedTab, name: str) -> None:
    """Press Tab until what has this name is focused."""
    focused = ""
    for _ in range(MAX_TABS):
        tab.page.keyboard.press("Tab")
        focused = tab.page.evaluate(
            "document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText ?? ''"
        )
        if focused.strip() == name:
            return
    raise AssertionError(f"{name} is never focused")


def test_an_approval_is_given_by_keyboard(tab: WatchedTab, client: StackClient) -> None:
    execution = client.start(client.register(APPROVAL, path="test/by_keyboard"))
    client.comes(execution, "command.parked")
    tab.page.goto(f"/executions/{execution}")
    read_region(tab, "waits for you").wait_for()
    go_to(tab, "Approve…")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("dialog").wait_for()
    go_to(tab, "Approve")
    tab.page.keyboard.press("Enter")
    read_region(tab, "result").get_by_text("completed").wait_for()
    assert client.wait_for_end(execution)["status"] == "completed"


def test_steps_tabs_items_and_time_are_reached_by_keyboard(
    tab: WatchedTab, failed_execution: str
) -> None:
    page = tab.page
    page.goto(f"/executions/{failed_execution}")
    read_region(tab, "failure").wait_for()
    page.get_by_role("listbox", name="Steps").wait_for()
    go_to(tab, "Steps")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("step=plan"))
    go_to(tab, "Input·Output")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_role("tab", name="Vars", selected=True).wait_for()
    page.keyboard.press("[")
    page.wait_for_url(re.compile("at="))
    page.keyboard.press("l")
    page.get_by_text("as of event").wait_for(state="hidden")
    page.keyboard.press("f")
    page.wait_for_url(re.compile("event="))
    page.keyboard.press("Escape")
    page.wait_for_url(lambda url: "event=" not in url)


def test_a_dialog_gives_the_focus_back(tab: WatchedTab, failed_execution: str) -> None:
    tab.page.goto(f"/executions/{failed_execution}")
    read_region(tab, "failure").wait_for()
    go_to(tab, "Retry failed")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("dialog").wait_for()
    tab.page.keyboard.press("Escape")
    tab.page.get_by_role("dialog").wait_for(state="hidden")
    tab.page.wait_for_function(
        f"document.activeElement.innerText?.trim() === {json.dumps('Retry failed')}"
    )


def test_the_focus_is_always_seen(tab: WatchedTab, failed_execution: str) -> None:
    """Everything that the key Tab leads to has an outline."""
    tab.page.goto(f"/executions/{failed_execution}")
    read_region(tab, "failure").wait_for()
    unseen: list[str] = []
    for _ in range(MAX_TABS):
        tab.page.keyboard.press("Tab")
        hidden = tab.page.evaluate(
            """() => { const element = document.activeElement;
                       if (element === document.body) return null;
                       const style = getComputedStyle(element);
                       const isSeen = style.outlineStyle !== 'none' || style.boxShadow !== 'none';
                       return isSeen ? null : element.outerHTML.slice(0, 120) }"""
        )
        if hidden is not None:
            unseen.append(hidden)
    assert unseen == []
