"""Text of others stays text, at every place where a page shows it. Nothing of it runs, and the policy has nothing to refuse."""

import json
import re
from typing import Any

import pytest

from tests.e2e.conftest import StackClient
from tests.e2e.ui.browser import WatchedTab
from tests.e2e.ui.samples import read_region
from tests.waiting import until

CORPUS = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(2)</script>",
    "javascript:alert(3)",
    "\"'><svg onload=alert(4)>",
    "{{7*7}}",
    "</script><iframe srcdoc='<script>alert(5)</script>'>",
    "\u202eright to left\u202c",
]
HOSTILE = " ".join(CORPUS)
PATH = "test/hostile"
KEY = "<img src=x onerror=alert(8)>"

STEPS = """
  - step: show
    tool:
      kind: python
      input: {text: "{{ workload.text }}"}
      code: |
        print(text)
        result = [{"name": text, text: text, "number": n} for n in range(3)]
    set:
      ctx.text: "{{ workload.text }}"
      ctx.map: "{{ {workload.text: workload.text} }}"
    next:
      - {step: never, when: "{{ workload.text == '<script>alert(9)</script>' }}"}
      - {step: each}
  - step: never
    tool: {kind: noop}
  - step: each
    loop: {in: "{{ show.rows }}", iterator: item, spec: {mode: parallel, policy: {failure: at_end}}}
    tool:
      kind: python
      input: {item: "{{ item }}"}
      code: |
        print(item["name"])
        if item["number"]:
            raise ValueError(item["name"])
        result = item
"""


@pytest.mark.parametrize("text", CORPUS)
def test_names_of_playbooks_and_steps_cannot_have_it(client: StackClient, text: str) -> None:
    for document in (
        {"metadata": {"name": "x", "path": f"test/{text}"}, "workflow": [{"step": "a"}]},
        {"metadata": {"name": "x", "path": "test/x"}, "workflow": [{"step": text}]},
    ):
        content = json.dumps({"apiVersion": "noetl.io/v2", "kind": "Playbook", **document})
        answer = client.http.post("/api/catalog/register", json={"content": content})
        assert answer.status_code == 422


@pytest.fixture(scope="module")
def execution(client: StackClient) -> str:
    client.register(STEPS, path=PATH, workload={"text": HOSTILE, KEY: HOSTILE})
    ended = client.wait_for_end(client.start(PATH))
    assert ended["status"] == "failed"
    return str(ended["execution_id"])


def assert_text_only(tab: WatchedTab, shown: Any) -> None:
    """The text is on the page, as text; no element was made of it."""
    shown.get_by_text("<img src=x onerror=alert(").first.wait_for()
    assert tab.page.locator("img, iframe, main script, [onerror], [onload]").count() == 0
    hrefs = tab.page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")
    assert [href for href in hrefs if href.startswith("javascript:")] == []


@pytest.mark.parametrize("step", ["show", "each"])
@pytest.mark.parametrize("tab_name", ["data", "vars", "logs", "playbook"])
def test_a_tab_of_the_inspector(tab: WatchedTab, execution: str, tab_name: str, step: str) -> None:
    tab.page.goto(f"/executions/{execution}?step={step}&tab={tab_name}")
    assert_text_only(tab, tab.page.get_by_role("tabpanel"))


@pytest.mark.parametrize("tab_name", ["attempts", "lineage"])
def test_a_tab_without_data_of_others(tab: WatchedTab, execution: str, tab_name: str) -> None:
    tab.page.goto(f"/executions/{execution}?step=show&tab={tab_name}")
    until(lambda: tab.page.get_by_role("tabpanel").inner_text() != "")
    assert_text_only(tab, tab.page.locator("main"))


def test_items_their_errors_and_the_search_for_them(tab: WatchedTab, execution: str) -> None:
    tab.page.goto(f"/executions/{execution}?step=each&tab=items&item=1")
    assert_text_only(tab, tab.page.get_by_role("region", name="item 1"))
    assert_text_only(tab, tab.page.get_by_role("list", name="kinds of failures"))
    tab.page.get_by_role("searchbox", name="items with the text").fill(HOSTILE)
    tab.page.wait_for_load_state("networkidle")
    assert_text_only(tab, tab.page.locator("main"))


def test_the_failure_its_log_lines_and_why(tab: WatchedTab, execution: str) -> None:
    tab.page.goto(f"/executions/{execution}?step=show")
    assert_text_only(tab, read_region(tab, "failure"))
    assert_text_only(tab, tab.page.get_by_role("list", name="last log lines"))
    read_region(tab, "why").get_by_text("<script>alert(9)</script>").first.wait_for()


def test_notes_of_the_graph(tab: WatchedTab, execution: str) -> None:
    """A condition is drawn on its arc, and shown whole beside the pointer."""
    tab.page.goto(f"/executions/{execution}?step=show")
    label = tab.page.locator("svg text", has_text=re.compile("workload.text ==")).first
    label.locator("xpath=preceding-sibling::*[1]").hover()  # its box
    tab.page.get_by_text("<script>alert(9)</script>").first.wait_for()
    assert_text_only(tab, tab.page.locator("main"))


def test_events_and_their_filter(tab: WatchedTab, execution: str) -> None:
    tab.page.goto(f"/executions/{execution}?group=failures")
    row = read_region(tab, "events in the order of the log").get_by_role("button").first
    row.click()
    assert_text_only(tab, tab.page.get_by_role("complementary"))
    tab.page.goto(f"/executions/{execution}?text=%3Cimg%20src%3Dx%3E&only=%3Cscript%3E&tab=%3Cb%3E")
    assert_text_only(tab, tab.page.locator("main"))


def test_the_header_and_the_title(tab: WatchedTab, execution: str) -> None:
    tab.page.goto(f"/executions/{execution}")
    tab.page.locator("h1 a").wait_for()
    assert PATH in tab.page.title()
    tab.page.locator("h1 a").click()
    tab.page.get_by_role("heading", name="Executions").wait_for()
    assert_text_only(tab, tab.page.get_by_role("table"))


def test_the_list_its_search_and_a_saved_filter(tab: WatchedTab, execution: str) -> None:
    tab.page.goto("/executions")
    assert_text_only(tab, tab.page.get_by_role("table"))
    tab.page.get_by_role("searchbox", name=re.compile("words of the error")).fill(CORPUS[0])
    tab.page.wait_for_url(re.compile("q="))
    tab.page.get_by_role("button", name="saved filters").click()
    tab.page.get_by_role("menuitem", name="Save this filter…").click()
    tab.page.get_by_role("textbox", name="name of the filter").fill(HOSTILE)
    tab.page.get_by_role("button", name="Save", exact=True).click()
    tab.page.get_by_role("button", name="saved filters").click()
    assert_text_only(tab, tab.page.get_by_role("menu"))


def test_dialogs(tab: WatchedTab, execution: str) -> None:
    tab.page.goto(f"/executions/{execution}")
    tab.page.get_by_role("button", name="Rerun…").click()
    dialog = tab.page.get_by_role("dialog")
    workload = dialog.get_by_role("textbox", name=re.compile("Workload"))
    until(lambda: "onerror=alert(1)" in workload.input_value())
    assert_text_only(tab, tab.page.locator("main"))


def test_the_file_of_a_download_has_a_plain_name(tab: WatchedTab, execution: str) -> None:
    tab.page.goto(f"/executions/{execution}?step=show&tab=logs")
    with tab.page.expect_download() as waited:
        tab.page.get_by_role("link", name="download").click()
    assert re.fullmatch(r"\d+-show\.jsonl", waited.value.suggested_filename)


def test_an_address_of_others(tab: WatchedTab) -> None:
    tab.page.goto("/executions/%3Cimg%20src=x%20onerror=alert(1)%3E")
    tab.page.wait_for_load_state("networkidle")
    assert tab.page.locator("img").count() == 0
    tab.errors.clear()  # the console names the answer 422
