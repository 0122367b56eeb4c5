"""The list of executions: filters in the address, live rows, and changes of many."""

import re

from tests.e2e.conftest import StackClient
from tests.e2e.ui.browser import WatchedTab

GREET = "  - {step: greet, tool: {kind: python, code: 'result = 7'}}\n"
FAIL = "  - {step: fail, tool: {kind: python, code: 'raise ValueError(1)'}}\n"
WAIT = "  - {step: ask, tool: {kind: wait, approval: {who: finance}}}\n"


def test_filters_survive_a_reload(tab: WatchedTab, client: StackClient) -> None:
    failed = client.run(FAIL)
    client.run(GREET)
    tab.page.goto("/executions")
    tab.page.get_by_role("button", name=re.compile("^failed")).click()
    tab.page.get_by_role("searchbox", name="playbook").fill(failed["path"])
    tab.page.wait_for_url(re.compile("status=failed&path="))
    tab.page.reload()
    tab.page.get_by_role("link", name=failed["path"]).first.wait_for()
    assert (
        tab.page.get_by_role("button", name=re.compile("^failed")).get_attribute("aria-pressed")
        == "true"
    )
    assert tab.page.get_by_role("searchbox", name="playbook").input_value() == failed["path"]


def test_a_filter_is_saved_by_name(tab: WatchedTab) -> None:
    tab.page.goto("/executions?status=failed")
    tab.page.get_by_role("button", name="saved filters").click()
    tab.page.get_by_role("menuitem", name="Save this filter…").click()
    tab.page.get_by_role("textbox", name="name of the filter").fill("mine")
    tab.page.get_by_role("button", name="Save", exact=True).click()
    tab.page.goto("/executions")
    tab.page.get_by_role("button", name="saved filters").click()
    tab.page.get_by_role("menuitem", name="mine", exact=True).click()
    tab.page.wait_for_url(re.compile("status=failed"))


def test_a_new_execution_appears_by_itself(tab: WatchedTab, client: StackClient) -> None:
    path = client.register(GREET, path="test/appears")
    tab.page.goto(f"/executions?path={path}")
    tab.page.get_by_text("No execution is like that.").wait_for()
    client.wait_for_end(client.start(path))
    tab.page.get_by_role("link", name=path).wait_for()
    tab.page.get_by_role("row", name=re.compile("completed")).wait_for()


def test_many_are_retried_after_a_confirmation(tab: WatchedTab, client: StackClient) -> None:
    path = client.register(FAIL, path="test/many")
    for _ in range(2):
        client.wait_for_end(client.start(path))
    tab.page.goto(f"/executions?path={path}")
    tab.page.get_by_role("checkbox", name="select all rows").check()
    tab.page.get_by_role("button", name="Retry failed…").click()
    dialog = tab.page.get_by_role("dialog", name="Retry 2 executions?")
    dialog.get_by_text("takes over what the old one finished").wait_for()
    dialog.get_by_role("button", name="Retry 2").click()
    dialog.get_by_role("link", name=re.compile("started")).first.wait_for()
    assert dialog.get_by_role("link", name=re.compile("started")).count() == 2


def test_what_waits_can_be_approved_from_the_list(tab: WatchedTab, client: StackClient) -> None:
    execution = client.start(client.register(WAIT, path="test/waits"))
    client.comes(execution, "command.parked")
    tab.page.goto("/executions")
    tab.page.get_by_role("button", name=re.compile("^waiting")).click()
    tab.page.wait_for_url(re.compile("status=waiting"))
    tab.page.get_by_role("row", name=re.compile("running, waiting test.waits")).wait_for()
    waits = tab.page.get_by_role("region", name="waits for you")
    waits.get_by_role("button", name="Approve…").click()
    tab.page.get_by_role("button", name="Approve", exact=True).click()
    assert client.wait_for_end(execution)["status"] == "completed"


def test_an_unknown_address_says_so(tab: WatchedTab) -> None:
    tab.page.goto("/nothing/here")
    tab.page.get_by_text("There is no page with this address.").wait_for()
