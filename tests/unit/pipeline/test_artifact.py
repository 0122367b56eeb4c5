"""`artifact`: into the store and out of it again, and never another execution's data."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.model import events as e
from noetl.model.ids import ExecutionId
from noetl.model.reference import make_address
from noetl.playbook.assignments import LINK_KEY
from noetl.tools.artifact import Artifact
from tests.examples import count_examples
from tests.unit.pipeline.bench import Bench, plan_of
from tests.unit.pipeline.test_tables import upstream


def run_step(bench: Bench, task: str, **fields: Any) -> Any:
    plan = plan_of(
        "- step: up\n  tool: {kind: python, code: x}\n- step: s\n  tool: {kind: artifact, "
        + task
        + "}\n",
        "workload: {ref: null}\n",
    )
    return asyncio.run(bench.execute(plan, **fields))


def test_what_is_put_is_found_by_its_address() -> None:
    bench = Bench(more=[Artifact()])
    put = run_step(bench, "put: {a: [1, {b: null}]}")
    got = run_step(bench, 'ref: "{{ up.ref }}"', results={"up": put.result}, attempt=2)
    assert bench.value(got.result) == {"a": [1, {"b": None}]}
    assert bench.refs[-1].inputs == (put.result.reference.ref_id,)


@pytest.mark.parametrize("count", [3, 200_000])
@pytest.mark.parametrize("task", ['ref: "{{ up.ref }}"', 'ref: "{{ up }}"', 'put: "{{ up }}"'])
def test_rows_stay_rows(task: str, count: int) -> None:
    bench = Bench(more=[Artifact()])
    up = upstream(bench, count)
    found = run_step(bench, task, results={"up": up}).result
    assert (found.reference.rows, found.reference.rows_at) == (count, "rows")
    assert found.reference.format == up.reference.format  # type: ignore[union-attr]
    assert found.context == {"row_count": count, "columns": ["id", "name"]}


def test_a_list_of_rows_is_a_list() -> None:
    bench = Bench(more=[Artifact()])
    found = run_step(bench, 'put: "{{ up.rows }}"', results={"up": upstream(bench, 3)}).result
    assert bench.value(found) == [{"id": n, "name": f"n{n}"} for n in range(3)]


def test_another_execution_s_data_is_read_only_when_the_server_named_it() -> None:
    bench = Bench(more=[Artifact()])
    theirs = asyncio.run(bench.store.put(make_address("78", "result", "s", "k"), {"secret": 1}))
    task = 'ref: "{{ workload.ref }}"'
    refused = run_step(bench, task, workload={"ref": theirs.uri})
    assert isinstance(refused, e.CommandFailed)
    assert refused.result.error is not None
    assert refused.result.error.code == "REFERENCE_FORBIDDEN"
    given_too = {"workload": {"ref": theirs.uri}, "ctx": {"old": {LINK_KEY: theirs.uri}}}
    assert bench.value(run_step(bench, task, **given_too).result) == {"secret": 1}


@pytest.mark.parametrize(
    ("ref", "code"),
    [
        (None, "REFERENCE_MISSING"),
        ("noetl://execution/77/result/s/none", "REFERENCE_NOT_AVAILABLE"),
        ("file:///etc/passwd", "BAD_REFERENCE"),
        ("noetl://execution/77/result/../k", "BAD_REFERENCE"),
        ({"uri": "noetl://execution/1/result/s/k"}, "REFERENCE_FORBIDDEN"),
    ],
)
def test_what_leads_nowhere(ref: Any, code: str) -> None:
    report = run_step(Bench(more=[Artifact()]), 'ref: "{{ workload.ref }}"', workload={"ref": ref})
    assert report.result.error.code == code


part = st.text(alphabet="./\\%:?#~ -_ab07\x00é", max_size=8)


@settings(max_examples=count_examples(30), deadline=None)
@given(
    st.builds(
        "noetl://execution/{}/{}/{}/{}".format,
        st.sampled_from(["77", "78", "077", " 77"]) | part,
        part,
        part,
        part,
    )
)
def test_no_address_leads_to_another_execution(uri: str) -> None:
    bench = Bench(more=[Artifact()])
    asyncio.run(bench.store.put(make_address(ExecutionId("78"), "result", "s", "k"), {"secret": 1}))
    report = run_step(bench, 'ref: "{{ workload.ref }}"', workload={"ref": uri})
    assert isinstance(report, e.CommandFailed)
