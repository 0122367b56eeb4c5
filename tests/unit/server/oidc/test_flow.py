"""One sign-in of one browser: what is made of its secret, and where it leads."""

import pytest

from noetl.server.oidc.flow import SignInFlow, choose_place, read_flow, write_flow


def test_a_flow_is_read_as_it_was_written() -> None:
    flow = SignInFlow(bytes(range(32)), "/executions?status=failed")
    again = read_flow(write_flow(flow))
    assert again == flow
    assert again is not None
    texts = {flow.state, flow.nonce, flow.verifier, flow.challenge}
    assert len(texts) == 4
    assert SignInFlow(bytes(32), "/").state not in texts


@pytest.mark.parametrize("text", ["", ".", "x", "é.é", "AAAA.AAAA", "!" * 43, f"{'A' * 43}.gIA"])
def test_a_cookie_that_is_no_flow_is_none(text: str) -> None:
    assert read_flow(text) is None


@pytest.mark.parametrize(
    "place",
    [
        "https://evil.example",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/executions\\@evil.example",
        "javascript:alert(1)",
        "/\t/evil.example",
        "/\n/evil.example",
        "/executions\r\nSet-Cookie: x=y",
        "/\u2028x",
        "/login",
        "/login?next=//evil.example",
        "evil.example",
        " /executions",
        "",
        None,
        "/" + "x" * 2_000,
    ],
)
def test_no_place_is_on_another_site(place: str | None) -> None:
    assert choose_place(place) == "/executions"
    flow = read_flow(write_flow(SignInFlow(bytes(32), place or "")))
    assert flow is not None
    assert flow.place == "/executions", "a cookie that somebody else wrote leads nowhere else"


@pytest.mark.parametrize("place", ["/", "/executions/1?step=a%2Fb#x", "/playbooks/a/b"])
def test_a_path_of_the_page_is_a_place(place: str) -> None:
    assert choose_place(place) == place
