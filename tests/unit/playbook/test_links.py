"""Links and data that looks like one: what is wrapped comes back as it was, and is never taken for a link."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from noetl.engine.expressions import DistantValue
from noetl.model.ids import RefId
from noetl.model.reference import Reference, is_member_uri
from noetl.playbook.assignments import (
    LINK_KEY,
    LITERAL_KEY,
    make_link,
    replace_links,
    unwrap_links,
    wrap_links,
)

KEYS = st.sampled_from([LINK_KEY, LITERAL_KEY, "a", "uri"])
DATA = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=12,
)
LINK = make_link(Reference(ref_id=RefId("1"), type="kv", uri="noetl://execution/1/result/s/k"))


@given(DATA)
def test_wrapped_data_comes_back_as_it_was(data: Any) -> None:
    assert unwrap_links(wrap_links(data)) == data
    assert replace_links(wrap_links(data), DistantValue) == data


@given(DATA)
def test_links_beside_wrapped_data_are_found(data: Any) -> None:
    found = replace_links({"link": LINK, "data": wrap_links(data)}, DistantValue)
    assert isinstance(found["link"], DistantValue)
    assert found["data"] == data


def test_only_the_address_that_a_member_was_stored_under_is_a_member() -> None:
    whole = "noetl://execution/1/result/s/c-1-task"
    assert is_member_uri(whole, "left", f"{whole}.left")
    assert is_member_uri(f"{whole}-l2", "left", f"{whole}.left-l2")
    for other in (
        f"{whole}.right",
        whole,
        "noetl://execution/2/result/s/c-1-task.left",
        f"{whole}.left-l2",
        None,
        {},
        7,
    ):
        assert not is_member_uri(whole, "left", other)
