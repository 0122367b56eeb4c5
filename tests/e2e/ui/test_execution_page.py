"""The page of an execution: its failure, its time, its actions, and text of others in it."""

import re

from tests.e2e.conftest import StackClient
from tests.e2e.ui.browser import WatchedTab
from tests.e2e.ui.samples import APPROVAL, SCORE, SKIPS, read_region, run_score
from tests.stack import Stack

COMMENT = "looks <b>good</b> {{7*7}}"


def test_a_retry_opens_the_new_execution(tab: WatchedTab, client: StackClient) -> None:
    execution = run_score(client, 20, [3])
    tab.page.goto(f"/executions/{execution}")
    tab.page.get_by_role("button", name="Retry failed").click()
    tab.page.get_by_role("button", name="Retry", exact=True).click()
    tab.page.get_by_role("link", name=re.compile("repeats")).wait_for()
    assert execution not in tab.page.url


def test_a_rerun_takes_another_workload(tab: WatchedTab, client: StackClient) -> None:
    execution = run_score(client, 20, [3])
    tab.page.goto(f"/executions/{execution}")
    tab.page.get_by_role("button", name="Rerun…").click()
    workload = tab.page.get_by_role("textbox", name=re.compile("Workload"))
    start = tab.page.get_by_role("button", name="Run again")
    workload.fill('{"n": 5, ')
    tab.page.get_by_text("not JSON").wait_for()
    assert start.is_disabled()
    workload.fill("n: 5\nbad: []")
    tab.page.get_by_text("Runs plan").wait_for()
    start.click()
    tab.page.wait_for_url(lambda url: execution not in url)
    started = tab.page.url.rpartition("/")[2]
    assert client.wait_for_end(started)["workload"] == {"n": 5, "bad": []}


def test_an_earlier_state_is_shown_and_actions_rest(tab: WatchedTab, client: StackClient) -> None:
    execution = run_score(client, 20, [3])
    tab.page.goto(f"/executions/{execution}")
    read_region(tab, "failure").wait_for()
    for _ in range(3):
        tab.page.keyboard.press("[")
    tab.page.get_by_text(re.compile(r"as of event \d+, \+")).wait_for()
    assert tab.page.get_by_role("button", name="Retry failed").is_disabled()
    assert "at=" in tab.page.url
    tab.page.keyboard.press("l")
    tab.page.get_by_text("as of event").wait_for(state="hidden")
    assert tab.page.get_by_role("button", name="Retry failed").is_enabled()


def test_a_live_page_follows_to_the_end(tab: WatchedTab, client: StackClient) -> None:
    execution = client.start(client.register(APPROVAL))
    client.comes(execution, "command.parked")
    tab.page.goto(f"/executions/{execution}")
    waits = read_region(tab, "waits for you")
    waits.get_by_role("button", name="Approve…").click()
    tab.page.get_by_role("textbox", name="Comment").fill(COMMENT)
    command = tab.page.get_by_role("dialog").get_by_role("button", name="CLI")
    assert f"noetl exec approve {execution} ask --comment" in command.get_attribute("title")
    tab.page.get_by_role("button", name="Approve", exact=True).click()
    read_region(tab, "result").get_by_text("completed").wait_for()
    [signal] = client.events(execution, "signal.received")
    assert signal["data"]["payload"]["comment"] == COMMENT


def test_what_is_asked_stands_beside_the_approval(tab: WatchedTab, client: StackClient) -> None:
    execution = client.start(client.register(APPROVAL))
    client.comes(execution, "command.parked")
    by = client.get(f"/api/executions/{execution}/view")["by"]
    for address in (f"/executions/{execution}", "/executions"):
        tab.page.goto(address)
        waits = read_region(tab, "waits for you")
        for name, value in (("asked by", by), ("who", "finance"), ("amount", "950")):
            term = waits.get_by_role("term").filter(has_text=re.compile(f"^{name}$"))
            term.locator("xpath=following-sibling::dd").filter(has_text=value).wait_for()
        waits.get_by_role("button", name="Reject…").click()
        dialog = tab.page.get_by_role("dialog", name="Reject ask?")
        dialog.get_by_text("950").wait_for()
        dialog.get_by_role("button", name="Close").click()
    client.ask(execution, "signals/approve:ask", {"payload": {"approved": True}})
    client.wait_for_end(execution)


def test_chosen_items_run_again_and_the_others_stay_failed(
    tab: WatchedTab, client: StackClient
) -> None:
    execution = run_score(client, 20, [3, 5])
    tab.page.goto(f"/executions/{execution}?step=score&tab=items")
    items = tab.page.get_by_role("list", name="items")
    items.get_by_role("checkbox", name="choose item 3").check()
    tab.page.get_by_role("button", name="Retry these…").click()
    dialog = tab.page.get_by_role("dialog", name="Retry 1 item of score")
    dialog.get_by_text("Runs score (1 of 20 items), then report.").wait_for()
    dialog.get_by_text("2 other failed items of score stay failed, so score fails").wait_for()
    dialog.get_by_role("button", name="Retry", exact=True).click()
    tab.page.get_by_role("link", name=re.compile("repeats")).wait_for()
    retried = tab.page.url.rpartition("/")[2].partition("?")[0]
    assert client.wait_for_end(retried)["status"] == "failed"
    tab.page.goto(f"/executions/{retried}?step=score&tab=items")
    for item in (3, 5, 11):
        items.get_by_role("checkbox", name=f"choose item {item}", exact=True).wait_for()
    tried = client.get(f"/api/executions/{retried}/steps/score/items")
    assert {item["index"] for item in tried["items"]} == {3, 5, 11}
    assert client.get(f"/api/executions/{retried}/view")["steps"]["score"]["loop"]["total"] == 1


def test_an_item_leads_to_the_execution_that_it_started(
    tab: WatchedTab, client: StackClient
) -> None:
    child = client.register("  - {step: greet, tool: {kind: noop}}\n", path="test/greet")
    parent = client.run(f"""
  - step: each
    loop: {{in: [7], iterator: n, spec: {{mode: parallel}}}}
    tool: {{kind: playbook, path: {child}}}
""")
    tab.page.goto(f"/executions/{parent['execution_id']}?step=each&tab=items")
    tab.page.get_by_role("list", name="items").get_by_role(
        "link", name=re.compile("^child")
    ).click()
    tab.page.get_by_role("link", name=re.compile("^child of")).wait_for()
    assert parent["execution_id"] not in tab.page.url


CHUNKS = """
  - step: work
    loop: {in: "{{ range(0, 40) }}", iterator: n, spec: {mode: sequential, chunk: 10}}
    tool: {kind: python, input: {n: "{{ n }}"}, code: "result = n"}
"""
AXIS_PX, LANE_PX, GUTTER_PX = 28, 28, 132


def test_a_command_of_the_timeline_leads_to_its_items(tab: WatchedTab, client: StackClient) -> None:
    execution = client.run(CHUNKS)["execution_id"]
    tab.page.goto(f"/executions/{execution}")
    canvas = tab.page.locator("canvas")
    box = canvas.bounding_box()
    for share in range(5, 100, 5):
        if "first=" in tab.page.url:
            break
        x = GUTTER_PX + (box["width"] - GUTTER_PX) * share / 100
        canvas.click(position={"x": x, "y": AXIS_PX + LANE_PX / 2})
    tab.page.get_by_text("of one command").wait_for()
    tab.page.get_by_role("img", name=re.compile("^10 items, up to ")).wait_for()
    items = tab.page.get_by_role("list", name="items", exact=True).get_by_role("listitem")
    items.nth(9).wait_for()
    assert items.count() == 10
    tab.page.get_by_role("button", name="all items").click()
    tab.page.get_by_text("of one command").wait_for(state="hidden")
    tab.page.get_by_role("tab", name="Attempts").click()
    tab.page.get_by_role("tabpanel").get_by_role("button", name="items 20–29").click()
    tab.page.wait_for_url(re.compile("first=20&count=10"))
    tab.page.get_by_role("tabpanel").get_by_text("items 20–29").wait_for()


def test_the_way_around_a_skipped_step_is_drawn(tab: WatchedTab, client: StackClient) -> None:
    execution = client.run(SKIPS)["execution_id"]
    tab.page.goto(f"/executions/{execution}")
    picture = tab.page.get_by_role("img", name=re.compile("^Graph of 4 steps"))
    label = picture.locator("text", has_text="skip if ctx.n > 3 ✓")
    label.wait_for()
    place = label.bounding_box()
    tab.page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    tab.page.get_by_text("if its admission rule skips two").wait_for()


def test_keys_lead_through_list_and_page(tab: WatchedTab, client: StackClient) -> None:
    execution = run_score(client, 20, [3])
    path = client.get(f"/api/executions/{execution}")["path"]
    tab.page.goto(f"/executions?path={path}")
    tab.page.get_by_role("link", name=path).first.wait_for()
    tab.page.keyboard.press("?")
    tab.page.get_by_role("dialog", name="Keys").wait_for()
    tab.page.keyboard.press("Escape")
    tab.page.get_by_role("dialog").wait_for(state="hidden")
    tab.page.keyboard.press("j")
    tab.page.keyboard.press("Enter")
    read_region(tab, "failure").wait_for()
    tab.page.keyboard.press("4")
    tab.page.get_by_role("tab", name="Logs", selected=True).wait_for()
    tab.page.keyboard.press("f")
    tab.page.wait_for_url(re.compile("event="))
    tab.page.keyboard.press("g")
    tab.page.keyboard.press("e")
    tab.page.get_by_role("heading", name="Executions").wait_for()


def test_children_are_listed_by_their_parent(tab: WatchedTab, client: StackClient) -> None:
    child = client.register("  - {step: greet, tool: {kind: noop}}\n", path="test/child")
    parent = client.run(f"""
  - step: each
    loop: {{in: "{{{{ range(0, 3) }}}}", iterator: n, spec: {{mode: parallel}}}}
    tool: {{kind: playbook, path: {child}}}
""")
    tab.page.goto(f"/executions/{parent['execution_id']}")
    tab.page.get_by_role("link", name="3 children").click()
    tab.page.get_by_role("button", name=re.compile("^children of")).wait_for()
    tab.page.get_by_role("link", name=child).nth(2).wait_for()
    assert tab.page.get_by_role("link", name=child).count() == 3


def test_the_search_field_runs_commands_of_the_execution(
    tab: WatchedTab, client: StackClient
) -> None:
    execution = client.start(client.register(APPROVAL, path="test/commands"))
    client.comes(execution, "command.parked")
    tab.page.goto(f"/executions/{execution}")
    read_region(tab, "waits for you").wait_for()
    tab.page.keyboard.press("/")
    offers = tab.page.get_by_role("listbox", name="offers").get_by_role("option")
    offers.filter(has_text="copy as CLI").wait_for()
    tab.page.keyboard.type("pause")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("button", name="Resume", exact=True).first.wait_for()
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("cancel")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("dialog", name="Cancel this execution?").wait_for()
    tab.page.get_by_role("button", name="Cancel the execution").click()
    assert client.wait_for_end(execution)["status"] == "cancelled"
    tab.page.get_by_role("button", name="Rerun…").wait_for()
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("retry")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("dialog", name="Retry what did not finish").wait_for()


def test_the_failure_leads_to_the_line_of_its_code_and_to_its_log(
    tab: WatchedTab, client: StackClient
) -> None:
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: lines, path: test/lines}\n"
    text = f"{head}workload: {{n: 10, bad: [3]}}\nworkflow:{SCORE}"
    client.http.post("/api/catalog/register", json={"content": text}).raise_for_status()
    execution = client.start("test/lines")
    assert client.wait_for_end(execution)["status"] == "failed"
    line = 1 + next(n for n, each in enumerate(text.splitlines()) if "raise ValueError" in each)
    tab.page.goto(f"/executions/{execution}")
    failure = read_region(tab, "failure")
    failure.get_by_role("button", name=f"show in playbook, line {line}").click()
    tab.page.get_by_role("img", name=f"line {line}").wait_for()
    failure.get_by_role("button", name="last log lines of item 3").click()
    tab.page.get_by_role("tab", name="Logs", selected=True).wait_for()


def test_a_small_result_is_shown_and_no_room_is_left_for_an_empty_input(
    tab: WatchedTab, client: StackClient
) -> None:
    ended = client.run("  - {step: greet, tool: {kind: python, code: 'result = {\"text\": 7}'}}\n")
    tab.page.goto(f"/executions/{ended['execution_id']}?step=greet&tab=data")
    read_region(tab, "result").get_by_text('{"text":7}').wait_for()
    output = read_region(tab, "output")
    output.wait_for()
    assert read_region(tab, "input").count() == 0
    panel = tab.page.get_by_role("tabpanel").bounding_box()["width"]
    assert output.bounding_box()["width"] > 0.9 * panel - 24


def test_events_have_one_number_in_the_address_the_list_and_the_command(
    tab: WatchedTab, client: StackClient, ui_stack: Stack
) -> None:
    execution = run_score(client, 20, [3])
    tab.page.goto(f"/executions/{execution}?step=plan&at=9&event=7")
    tab.page.get_by_text(re.compile("as of event 9,")).wait_for()
    tab.page.get_by_role("complementary", name="event 7").wait_for()
    told = ui_stack.client.json("exec", "at", execution, "9")
    assert told["number"] == 9
    tab.page.keyboard.press("{")
    tab.page.get_by_text(re.compile("as of event 8,")).wait_for()
    tab.page.get_by_role("button", name="State as of here").click()
    tab.page.get_by_text(re.compile("as of event 7,")).wait_for()
    tab.page.wait_for_url(re.compile("at=7"))
    link = read_region(tab, "why").get_by_role("button", name=re.compile(r"^event \d+$")).first
    number = link.inner_text().removeprefix("event ")
    link.click()
    tab.page.wait_for_url(re.compile(f"event={number}(&|$)"))
    tab.page.get_by_role("complementary", name=f"event {number}", exact=True).wait_for()
