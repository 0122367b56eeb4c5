"""Pages of large executions: what they load and hold does not grow with the log."""

import re

import pytest

from tests.e2e.conftest import StackClient
from tests.e2e.ui.browser import WatchedTab, list_renderer_megabytes
from tests.e2e.ui.samples import SCORE, read_region, run_score

MAX_ELEMENTS = 3000
MAX_TAB_MB = 300
MAX_ANSWER_BYTES = 512 << 10
MIN_EVENTS = 200_000
MAX_EVENT_PAGES = 3  # the one around the place, and one in each direction
ONE_BY_ONE = SCORE.replace("mode: parallel,", "mode: parallel, chunk: 1,")


def list_large_answers(tab: WatchedTab) -> list[str]:
    """Answers of the API that this page has got and that are larger than any should be."""
    sizes = tab.page.evaluate(
        """() => performance.getEntriesByType('resource')
              .filter(entry => entry.name.includes('/api/'))
              .map(entry => [entry.name, entry.decodedBodySize])"""
    )
    return [f"{name}: {size} bytes" for name, size in sizes if size > MAX_ANSWER_BYTES]


def find_failure_by_three_clicks(tab: WatchedTab, path: str) -> None:
    tab.page.goto("/executions")
    tab.page.get_by_role("button", name=re.compile("^failed")).click()
    tab.page.get_by_role("link", name=path).first.click()
    failure = read_region(tab, "failure")
    failure.get_by_text("KeyError: 'weight'").wait_for()
    failure.get_by_role("button", name="next kind").click()
    failure.get_by_text("ValueError: cannot score 7777").wait_for()
    failure.get_by_text("loading 7777").wait_for()
    tab.page.get_by_text("Traceback").first.wait_for()


def assert_small(tab: WatchedTab) -> None:
    assert tab.page.evaluate("document.querySelectorAll('*').length") < MAX_ELEMENTS
    assert list_large_answers(tab) == []
    assert max(list_renderer_megabytes(tab.page)) < MAX_TAB_MB


def test_a_failure_among_100_000_items_is_understood_in_three_clicks(
    tab: WatchedTab, client: StackClient
) -> None:
    execution = run_score(client, 100_000, [7_777, 50_000])
    find_failure_by_three_clicks(tab, client.get(f"/api/executions/{execution}")["path"])
    read_region(tab, "failure").get_by_text("2 kinds, 3 failures").wait_for()
    assert_small(tab)
    tab.page.get_by_role("button", name="Retry failed").click()
    tab.page.get_by_text(re.compile(r"Runs score \(3 of 100.000 items\), then report\.")).wait_for()
    tab.page.get_by_text("Inherits the results of plan.").wait_for()


def test_a_place_in_a_long_log_is_read_without_the_rest(
    tab: WatchedTab, client: StackClient
) -> None:
    ended = client.run(ONE_BY_ONE, workload={"n": 1_000, "bad": []})
    tab.page.goto(f"/executions/{ended['execution_id']}")
    tab.page.wait_for_load_state("networkidle")
    pages: list[str] = []
    tab.page.on("request", lambda request: pages.append(request.url))
    tab.page.evaluate("history.replaceState(history.state, '', location.pathname + '?at=300')")
    tab.page.get_by_text(re.compile("as of event")).wait_for()
    tab.page.wait_for_load_state("networkidle")
    assert len([url for url in pages if "/events?" in url]) <= MAX_EVENT_PAGES


@pytest.mark.long
def test_a_loop_with_a_command_for_each_item(tab: WatchedTab, client: StackClient) -> None:
    ended = client.run(ONE_BY_ONE, workload={"n": 100_000, "bad": [7_777, 50_000]})
    execution = ended["execution_id"]
    view = client.get(f"/api/executions/{execution}/view")
    assert view["events"] > MIN_EVENTS
    find_failure_by_three_clicks(tab, ended["path"])
    assert_small(tab)
    for name in ["items", "data", "vars", "logs", "attempts", "lineage", "playbook"]:
        tab.page.goto(f"/executions/{execution}?step=score&tab={name}&event={view['last_seq']}")
        tab.page.get_by_role("tabpanel").wait_for()
        tab.page.wait_for_load_state("networkidle")
        assert_small(tab)
