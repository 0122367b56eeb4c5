"""A browser has to sign in, and does so by a name and a password, a link or a token."""

from tests.e2e.conftest import StackClient
from tests.e2e.ui.browser import sign_in
from tests.e2e.ui.conftest import OpenTab
from tests.e2e.ui.samples import APPROVAL
from tests.stack import Stack


def forget_refusals(errors: list[str]) -> None:
    """A browser writes every refused request to its console."""
    errors[:] = [error for error in errors if "401" not in error]


def test_a_page_leads_to_the_sign_in_page_and_back(
    open_tab: OpenTab, client: StackClient, ui_stack: Stack
) -> None:
    tab = open_tab(is_signed_in=False)
    tab.page.goto("/executions?status=failed")
    token = tab.page.get_by_label("token")
    token.wait_for()
    assert "/login?next=" in tab.page.url
    token.fill("noetl_wrong")
    tab.page.get_by_role("button", name="Use the token").click()
    tab.page.get_by_role("alert").get_by_text("NOT_AUTHENTICATED").wait_for()
    token.fill(ui_stack.command.token)
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("banner").get_by_text("local admin").wait_for()
    assert tab.page.url.endswith("/executions?status=failed")
    tab.page.get_by_role("button", name="sign out").click()
    tab.page.get_by_label("token").wait_for()
    tab.page.goto("/executions")
    tab.page.get_by_label("token").wait_for()
    forget_refusals(tab.errors)


def test_the_link_of_a_command_signs_in_once(open_tab: OpenTab, ui_stack: Stack) -> None:
    shown = ui_stack.client.json("ui", "--no-open")
    tab = open_tab(is_signed_in=False)
    tab.page.goto(shown["link"])
    tab.page.get_by_role("banner").get_by_text("local admin").wait_for()
    assert tab.page.url == f"{ui_stack.url}/executions"
    tab.page.goto(shown["link"])  # as by the way back: this browser is signed in
    tab.page.get_by_role("banner").get_by_text("local admin").wait_for()
    forget_refusals(tab.errors)
    stranger = open_tab(is_signed_in=False)
    stranger.page.goto(shown["link"])
    stranger.page.get_by_role("alert").get_by_text("has been used or has expired").wait_for()
    forget_refusals(stranger.errors)


def test_a_user_signs_in_by_name_and_password(open_tab: OpenTab, ui_stack: Stack) -> None:
    made = ui_stack.client.run_with_input(
        "correct horse battery\n", "user", "create", "ada", "--role", "viewer"
    )
    assert made.code == 0, made.err
    tab = open_tab(is_signed_in=False)
    tab.page.goto("/executions")
    tab.page.get_by_label("name").fill("ada")
    tab.page.get_by_label("password").fill("wrong")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("alert").get_by_text("the name or the password is wrong").wait_for()
    tab.page.get_by_label("name").fill("Ada")
    tab.page.get_by_label("password").fill("correct horse battery")
    tab.page.get_by_role("button", name="Sign in").click()
    tab.page.get_by_role("banner").get_by_text("ada").wait_for()
    assert tab.page.url == f"{ui_stack.url}/executions"
    forget_refusals(tab.errors)


def test_a_viewer_is_told_why_nothing_can_be_changed(
    open_tab: OpenTab, client: StackClient, ui_stack: Stack
) -> None:
    waiting = client.start(client.register(APPROVAL, path="test/viewed"))
    client.comes(waiting, "command.parked")
    ended = client.run("  - {step: fail, tool: {kind: python, code: 'raise ValueError(1)'}}\n")
    made = ui_stack.client.json("token", "create", "reader", "--role", "viewer")
    tab = open_tab(is_signed_in=False)
    sign_in(tab.page.context, made["token"])
    pages = {
        f"/executions/{ended['execution_id']}": ["Retry failed", "Rerun…"],
        f"/executions/{waiting}": ["Approve…", "Reject…", "Pause", "Cancel…", "Signal…"],
        "/executions?status=waiting": ["Approve…", "Reject…"],
    }
    for address, names in pages.items():
        tab.page.goto(address)
        for name in names:
            button = tab.page.get_by_role("button", name=name, exact=True)
            tab.page.locator("[aria-disabled=true]", has_text=name).first.wait_for()
            assert "your role (viewer) may only look" in button.get_attribute("title")
            button.click(force=True)
        assert tab.page.get_by_role("dialog").count() == 0
    assert client.get(f"/api/executions/{waiting}")["status"] == "running"


def test_a_phone_can_sign_out(open_tab: OpenTab) -> None:
    tab = open_tab(viewport={"width": 390, "height": 844})
    tab.page.goto("/executions")
    tab.page.get_by_role("button", name="sign out").click()
    tab.page.get_by_label("token").wait_for()
    forget_refusals(tab.errors)
