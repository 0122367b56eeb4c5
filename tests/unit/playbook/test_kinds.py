"""Every kind that validates runs: what no worker can run is refused before it is registered."""

import pytest

from noetl.playbook.model import BUILT_IN_TASKS
from noetl.playbook.validation import load
from noetl.tools.registry import make_factories
from tests.play import workflow


def codes(steps: str, severity: str = "error") -> list[str]:
    return [
        finding.code for finding in load(workflow(steps)).findings if finding.severity == severity
    ]


def test_every_built_in_kind_has_a_tool() -> None:
    resolved_before = {"workbook"}  # the task it names runs
    from_spark = {"spark"}  # its tool comes with noetl.spark
    assert set(BUILT_IN_TASKS) - set(make_factories()) == resolved_before | from_spark


@pytest.mark.parametrize(
    "tool",
    [
        "{kind: nats, operation: shout, subject: a}",
        "{kind: nats, operation: publish}",
        "{kind: nats, operation: kv_get, bucket: b}",
        "{kind: sink, target: {kind: nats, table: t}, data: 1}",
        "{kind: sink, target: {kind: artifact}, data: 1}",
        "{kind: sink, target: {kind: mongodb, table: t}, data: 1}",
        "{kind: transfer, source: {kind: http, query: x}, target: {kind: postgres, table: t}}",
        "{kind: transfer, source: {kind: postgres, query: x}, target: {kind: http, url: 'http://x'}}",
        "[{name: a, kind: noop, spec: {policy: {rules: [{when: true, then: {do: jump, to: '{{ workload.x }}'}}]}}}]",
        "{kind: workbook, name: '{{ workload.x }}'}",
    ],
)
def test_what_no_worker_can_run_is_refused(tool: str) -> None:
    assert len(codes(f"- step: s\n  tool: {tool}")) == 1


def test_cursor_kinds() -> None:
    def cursor(kind: str) -> str:
        return (
            f"- step: s\n  loop: {{iterator: r, cursor: {{kind: {kind}, claim: x}}, spec: {{mode: cursor}}}}\n"
            "  tool: {kind: noop}"
        )

    assert codes(cursor("postgres")) == codes(cursor("duckdb")) == []
    assert codes(cursor("http")) == codes(cursor("postgress")) == ["UNKNOWN_KIND"]
    assert codes(cursor("mysql"), "warning") == ["UNKNOWN_KIND"]
