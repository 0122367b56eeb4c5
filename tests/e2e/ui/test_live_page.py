"""A page that stays open: its server is killed, another tab acts, it is hidden."""

import re
from typing import Any

from tests.e2e.conftest import StackClient
from tests.e2e.ui.browser import WatchedTab
from tests.e2e.ui.conftest import OpenTab
from tests.e2e.ui.samples import APPROVAL, read_region
from tests.stack import Stack
from tests.waiting import until

MINUTE_MS = 60_000
ITEMS = 400
SLOW = f"""
  - step: work
    loop:
      in: "{{{{ range(0, {ITEMS}) }}}}"
      iterator: each
      spec: {{mode: sequential, chunk: 1}}
    tool: {{kind: python, input: {{each: "{{{{ each }}}}"}}, code: "result = each"}}
    next: report
  - step: report
    tool: {{kind: python, code: "result = 1"}}
"""
# What the console says of a server that is away.
AWAY = re.compile(
    r"ERR_CONNECTION|ERR_INCOMPLETE|ERR_CONTENT_LENGTH_MISMATCH|ERR_NETWORK|ERR_EMPTY_RESPONSE|status of 503"
)


def open_waiting(tab: WatchedTab, client: StackClient) -> str:
    """Open the page of an execution that waits for an approval."""
    execution = client.start(client.register(APPROVAL))
    client.comes(execution, "command.parked")
    tab.page.goto(f"/executions/{execution}")
    read_region(tab, "waits for you").wait_for()
    return execution


def approve(client: StackClient, execution: str) -> None:
    client.ask(execution, "signals/approve:ask", {"payload": {"approved": True}})
    client.wait_for_end(execution)


def read_state(tab: WatchedTab) -> dict[str, Any]:
    """What the page says of the execution, without what only this tab has."""
    steps = tab.page.get_by_role("listbox", name="Steps").get_by_role("option").all_inner_texts()
    return {
        "title": tab.page.locator("h1").inner_text(),
        "steps": steps,
        "result": read_region(tab, "result").inner_text(),
        "place": tab.page.get_by_text(re.compile(r"^event .+ of ")).inner_text(),
    }


def test_a_page_recovers_when_its_server_is_killed(
    tab: WatchedTab, open_tab: OpenTab, client: StackClient, ui_stack: Stack
) -> None:
    execution = client.start(client.register(SLOW))
    client.comes(execution, "command.completed")
    tab.page.goto(f"/executions/{execution}")
    read_region(tab, "what runs now").wait_for()
    ui_stack.server.kill()
    tab.page.get_by_text("no answer since").wait_for()
    assert tab.page.locator("h1").is_visible()
    ui_stack.server.start()
    ui_stack.wait_until_ready()
    tab.page.get_by_text("no answer since").wait_for(state="hidden")
    read_region(tab, "result").get_by_text("completed").wait_for()
    client.wait_for_end(execution)
    other = [error for error in tab.errors if not AWAY.search(error)]
    assert other == []
    tab.errors.clear()
    fresh = open_tab()
    fresh.page.goto(f"/executions/{execution}")
    read_region(fresh, "result").wait_for()
    fresh.page.get_by_role("listbox", name="Steps").wait_for()
    expected = read_state(fresh)
    assert any(f"{ITEMS}" in step for step in expected["steps"])
    tab.page.get_by_text(expected["place"]).wait_for()
    tab.page.get_by_role("listbox", name="Steps").wait_for()
    assert read_state(tab) == expected


def test_a_dialog_opens_and_says_so_while_the_server_is_away(
    tab: WatchedTab, client: StackClient, ui_stack: Stack
) -> None:
    execution = open_waiting(tab, client)
    until(lambda: "ApprovalDialog" in list_loaded(tab))
    ui_stack.server.kill()
    try:
        read_region(tab, "waits for you").get_by_role("button", name="Approve…").click()
        dialog = tab.page.get_by_role("dialog", name="Approve ask?")
        dialog.get_by_text("finance").wait_for()
        dialog.get_by_role("button", name="Approve", exact=True).click()
        dialog.get_by_text("the server does not answer").wait_for()
        assert tab.page.locator("h1").is_visible()
    finally:
        ui_stack.server.start()
        ui_stack.wait_until_ready()
    dialog.get_by_role("button", name="Approve", exact=True).click()
    read_region(tab, "result").get_by_text("completed").wait_for()
    assert client.wait_for_end(execution)["status"] == "completed"
    assert [error for error in tab.errors if not AWAY.search(error)] == []
    tab.errors.clear()


def list_loaded(tab: WatchedTab) -> str:
    """The names of everything that the page has loaded."""
    script = "() => performance.getEntriesByType('resource').map(entry => entry.name).join()"
    return str(tab.page.evaluate(script))


def test_a_dialog_that_cannot_be_loaded_leaves_the_page_as_it_is(
    tab: WatchedTab, client: StackClient
) -> None:
    tab.page.route("**/assets/ApprovalDialog*", lambda route: route.abort())
    execution = open_waiting(tab, client)
    read_region(tab, "waits for you").get_by_role("button", name="Approve…").click()
    problem = tab.page.get_by_role("alert").filter(has_text="could not be loaded")
    problem.wait_for()
    read_region(tab, "waits for you").wait_for()
    assert execution in tab.page.url
    tab.page.unroute("**/assets/ApprovalDialog*")
    # Browsers differ: one asks for the script again, another remembers that it failed, and then the page is loaded again.
    tab.page.evaluate("document.body.dataset.before = 'reload'")
    problem.get_by_role("button", name="Try again").click()
    confirm = tab.page.get_by_role("button", name="Approve", exact=True)
    confirm.or_(tab.page.locator("body:not([data-before])")).first.wait_for()
    assert execution in tab.page.url
    if not confirm.is_visible():
        read_region(tab, "waits for you").get_by_role("button", name="Approve…").click()
    confirm.click()
    read_region(tab, "result").get_by_text("completed").wait_for()
    assert [error for error in tab.errors if "ERR_FAILED" not in error] == []
    tab.errors.clear()


def test_what_waits_and_the_timeline_follow_an_approval_from_elsewhere(
    tab: WatchedTab, open_tab: OpenTab, client: StackClient
) -> None:
    execution = open_waiting(tab, client)
    lister = open_tab()
    lister.page.goto("/executions")
    waits = "for you"  # the link in the header of every page
    for each in (tab, lister):
        each.page.get_by_role("banner").get_by_role("link", name=waits).wait_for()
    lanes = tab.page.get_by_role("table", name="Steps in time")
    lanes.get_by_role("row", name=re.compile("^ask .* 0 of 1 ")).wait_for(state="attached")
    approve(client, execution)
    lanes.get_by_role("row", name=re.compile("^ask .* 1 of 1 ")).wait_for(state="attached")
    lanes.get_by_role("row", name=re.compile("^pay .* 1 of 1 ")).wait_for(state="attached")
    for each in (tab, lister):
        each.page.get_by_role("banner").get_by_role("link", name=waits).wait_for(state="hidden")


def test_two_tabs_show_what_one_of_them_did(
    tab: WatchedTab, open_tab: OpenTab, client: StackClient
) -> None:
    execution = open_waiting(tab, client)
    path = client.get(f"/api/executions/{execution}")["path"]
    watcher, lister = open_tab(), open_tab()
    watcher.page.goto(f"/executions/{execution}")
    read_region(watcher, "waits for you").wait_for()
    lister.page.goto(f"/executions?path={path}")
    read_region(lister, "waits for you").wait_for()
    read_region(tab, "waits for you").get_by_role("button", name="Approve…").click()
    tab.page.get_by_role("button", name="Approve", exact=True).click()
    for each in (tab, watcher):
        read_region(each, "result").get_by_text("completed").wait_for()
    lister.page.get_by_role("row", name=re.compile("completed")).first.wait_for()
    read_region(lister, "waits for you").wait_for(state="hidden")
    assert read_state(tab) == read_state(watcher)


def test_a_hidden_tab_asks_for_nothing(
    tab: WatchedTab, open_tab: OpenTab, client: StackClient
) -> None:
    tab.page.clock.install()
    execution = open_waiting(tab, client)
    tab.page.wait_for_load_state("load")
    set_hidden(tab, True)
    visible = open_tab()
    visible.page.goto(f"/executions/{execution}")
    read_region(visible, "waits for you").wait_for()
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    approve(client, execution)
    read_region(visible, "result").get_by_text("completed").wait_for()  # a stream has told it
    tab.page.clock.run_for(MINUTE_MS)  # every timer of a minute has come
    assert asked == []
    set_hidden(tab, False)
    read_region(tab, "result").get_by_text("completed").wait_for()


def set_hidden(tab: WatchedTab, is_hidden: bool) -> None:
    tab.page.evaluate(
        """hidden => {
            Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
            Object.defineProperty(document, 'visibilityState', {value: hidden ? 'hidden' : 'visible', configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }""",
        is_hidden,
    )


def test_log_lines_appear_while_the_step_runs(tab: WatchedTab, client: StackClient) -> None:
    steps = """
  - step: talk
    tool:
      kind: python
      code: |
        import pathlib, time
        print("first line", flush=True)
        while not pathlib.Path(go).exists():
            time.sleep(0.01)
        print("second line")
        result = 1
      input: {go: "{{ workload.go }}"}
"""
    go = client.noetl.home / "go"
    execution = client.start(client.register(steps, workload={"go": str(go)}))
    tab.page.goto(f"/executions/{execution}?tab=logs&step=talk")
    lines = tab.page.get_by_role("list", name="log lines")
    lines.get_by_text("first line").wait_for()
    go.touch()
    lines.get_by_text("second line").wait_for()
