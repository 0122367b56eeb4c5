"""Keys of older playbooks: what each becomes, that each is noted, and that a converted playbook has none of them left."""

from typing import Any

import pytest
import yaml

from noetl.playbook.convert import convert
from noetl.playbook.findings import Code
from noetl.playbook.validation import load
from tests.play import workflow

PG = "kind: postgres, query: select 1"
CURSOR = "iterator: r, cursor: {kind: postgres, claim: x}"


def tool(fields: str) -> str:
    return workflow(f"- step: s\n  tool: {{{fields}}}")


@pytest.mark.parametrize(
    ("older", "today", "words"),
    [
        (
            tool("kind: http, url: 'http://a', verify_ssl: false"),
            tool("kind: http, url: 'http://a', verify: false"),
            "verify",
        ),
        (
            tool("kind: http, spec: {url: 'http://a', method: POST}"),
            tool("kind: http, url: 'http://a', method: POST"),
            "spec",
        ),
        (tool("kind: http, spec: {endpoint: 'http://a'}"), tool("kind: http, url: 'http://a'"), "url"),
        (tool("kind: python, spec: {code: result = 1}"), tool("kind: python, code: result = 1"), "spec"),
        (
            tool("kind: python, libs: {m: math, json: json}, code: 'result = m.pi'"),
            tool('kind: python, code: "import math as m\\nimport json\\nresult = m.pi"'),
            "import",
        ),
        (tool("kind: python, libs: {}, code: result = 1"), tool("kind: python, code: result = 1"), "libs"),
        (tool(f"{PG}, credential: pg"), tool(f"{PG}, auth: pg"), "auth"),
        (tool(f"{PG}, auth: pg, pool: {{max_size: 4}}"), tool(f"{PG}, auth: pg"), "pool"),
        (tool("kind: playbook, path: a, payload: {x: 1}"), tool("kind: playbook, path: a, input: {x: 1}"), "input"),
        (tool("kind: artifact, action: get, ref: a"), tool("kind: artifact, ref: a"), "ref"),
        (tool("kind: artifact, action: put, data: {a: 1}"), tool("kind: artifact, put: {a: 1}"), "put"),
        (
            workflow(
                f"- step: s\n  loop: {{{CURSOR}, spec: {{mode: cursor, frame: {{max_rows: 7, lease_seconds: 9}}}}}}"
            ),
            workflow(f"- step: s\n  loop: {{{CURSOR}, spec: {{mode: cursor, frame: {{size: 7, lease: 9}}}}}}"),
            "size",
        ),
        (
            workflow("- step: s\n  output: {store: disk}\n  tool: {kind: noop}"),
            workflow("- step: s\n  tool: {kind: noop, output: {store: disk}}"),
            "last task",
        ),
        (
            workflow("- step: s", metadata={"name": "x", "tags": ["etl", "daily"]}),
            workflow("- step: s", metadata={"name": "x", "labels": {"etl": "true", "daily": "true"}}),
            "labels",
        ),
    ],
)
def test_an_older_key_is_taken_noted_and_converted(older: str, today: str, words: str) -> None:
    found, meant = load(older), load(today)
    assert meant.findings == []
    assert found.playbook is not None, found.errors
    assert found.playbook == meant.playbook
    notes = [finding for finding in found.findings if finding.code == Code.OLD_SPELLING]
    assert words in " ".join(note.message for note in notes)
    assert {finding.severity for finding in found.findings} == {"note"}
    converted: Any = convert(older)
    text = converted if isinstance(converted, str) else converted.text
    assert load(text).findings == []
    assert load(text).playbook == meant.playbook


@pytest.mark.parametrize(
    "text",
    [
        tool(f"{PG}, auth: pg, pool: fast"),
        tool("kind: artifact, action: burn, ref: a"),
        tool("kind: python, libs: {np: 'numpy; import os'}, code: result = 1"),
        workflow("- step: s\n  output: {kind: postgres, table: t}\n  tool: {kind: noop}"),
        workflow("- step: s\n  output: {store: disk}"),
    ],
)
def test_an_older_key_that_cannot_be_kept_is_refused_with_a_hint(text: str) -> None:
    (finding,) = load(text).errors
    assert finding.hint


def test_loop_index_works_and_is_noted() -> None:
    text = workflow("- step: s\n  loop: {in: [1]}\n  tool: {kind: noop, input: {i: '{{ loop_index }}'}}")
    (note,) = load(text).findings
    assert (note.severity, note.message) == ("note", "`loop_index` is now `loop.index`")
    own = yaml.safe_load(text) | {"workload": {"loop_index": 1}}
    assert load(yaml.safe_dump(own)).findings == []


def test_a_bare_name_that_is_set_is_said_to_be_in_ctx() -> None:
    text = workflow("- step: s\n  set: {total: 1}\n  next: [{step: b, when: '{{ total > 0 }}'}]\n- step: b")
    (error,) = load(text).errors
    assert error.hint == "it is set in ctx: write ctx.total"
    assert load(text.replace("{{ total", "{{ ctx.total")).errors == []
