"""Keys of older playbooks: what each becomes, that each is noted, and that a converted playbook has none of them left."""

from typing import Any

import pytest
import yaml

from noetl.playbook.convert import convert
from noetl.playbook.findings import Code
from noetl.playbook.respelling import respell
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
        (
            tool("kind: http, spec: {endpoint: 'http://a'}"),
            tool("kind: http, url: 'http://a'"),
            "url",
        ),
        (
            tool("kind: python, spec: {code: result = 1}"),
            tool("kind: python, code: result = 1"),
            "spec",
        ),
        (
            tool("kind: python, libs: {m: math, json: json}, code: 'result = m.pi'"),
            tool('kind: python, code: "import math as m\\nimport json\\nresult = m.pi"'),
            "import",
        ),
        (
            tool("kind: python, libs: {}, code: result = 1"),
            tool("kind: python, code: result = 1"),
            "libs",
        ),
        (tool(f"{PG}, credential: pg"), tool(f"{PG}, auth: pg"), "auth"),
        (tool(f"{PG}, auth: pg, pool: {{max_size: 4}}"), tool(f"{PG}, auth: pg"), "pool"),
        (
            tool("kind: playbook, path: a, payload: {x: 1}"),
            tool("kind: playbook, path: a, input: {x: 1}"),
            "input",
        ),
        (tool("kind: artifact, action: get, ref: a"), tool("kind: artifact, ref: a"), "ref"),
        (
            tool("kind: artifact, action: put, data: {a: 1}"),
            tool("kind: artifact, put: {a: 1}"),
            "put",
        ),
        (
            workflow(
                f"- step: s\n  loop: {{{CURSOR}, spec: {{mode: cursor, frame: {{max_rows: 7, lease_seconds: 9}}}}}}"
            ),
            workflow(
                f"- step: s\n  loop: {{{CURSOR}, spec: {{mode: cursor, frame: {{size: 7, lease: 9}}}}}}"
            ),
            "size",
        ),
        (
            workflow("- step: s\n  output: {store: disk}\n  tool: {kind: noop}"),
            workflow("- step: s\n  tool: {kind: noop, output: {store: disk}}"),
            "last task",
        ),
        (
            workflow("- step: s", metadata={"name": "x", "tags": ["etl", "daily"]}),
            workflow(
                "- step: s", metadata={"name": "x", "labels": {"etl": "true", "daily": "true"}}
            ),
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
    text = workflow(
        "- step: s\n  loop: {in: [1]}\n  tool: {kind: noop, input: {i: '{{ loop_index }}'}}"
    )
    (note,) = load(text).findings
    assert (note.severity, note.message) == ("note", "`loop_index` is now `loop.index`")
    own = yaml.safe_load(text) | {"workload": {"loop_index": 1}}
    assert load(yaml.safe_dump(own)).findings == []


TOTAL = "- step: s\n  set: {total: 1}\n  next: [{step: b, when: '{{ total > 0 }}'}]\n- step: b"


def test_a_bare_name_that_a_set_assigns_is_read_from_ctx_and_noted() -> None:
    loaded = load(workflow(TOTAL))
    (note,) = loaded.findings
    assert (note.severity, note.message) == ("note", "`total` is now `ctx.total`")
    assert loaded.playbook is not None
    assert loaded.playbook == load(workflow(TOTAL.replace("{{ total", "{{ ctx.total"))).playbook


@pytest.mark.parametrize(
    "assignment",
    [
        "tool: {kind: noop, set: {total: 1}}",
        "tool: [{name: one, kind: noop, spec: {policy: [{else: {do: continue, set: {total: 1}}}]}}]",
        "tool: {kind: noop, spec: {policy: {rules: [{when: true, then: {do: continue, set: {total: 1}}}]}}}",
        "next: {step: b, set: {total: 1}}",
        "next: {arcs: [{step: b, set: {total: 1}}]}",
    ],
)
def test_every_assignment_of_a_bare_name_counts(assignment: str) -> None:
    onward = "" if "next" in assignment else "  next: b\n"
    reads = "- step: b\n  tool: {kind: noop, input: {x: '{{ total }}'}}"
    loaded = load(workflow(f"- step: s\n  {assignment}\n{onward}{reads}"))
    assert [finding.message for finding in loaded.findings] == ["`total` is now `ctx.total`"]


@pytest.mark.parametrize(
    ("template", "today"),
    [
        ("{{ total + other.total }} total", "{{ ctx.total + other.total }} total"),
        ("{{ 'total' ~ total }}", "{{ 'total' ~ ctx.total }}"),
        ("{{ total | default(total) }}", "{{ ctx.total | default(ctx.total) }}"),
        ("{{ total.a[total] if total is defined }}", "{{ ctx.total.a[ctx.total] if ctx.total is defined }}"),
        ("{%- if total -%} {{total}} {%- endif -%}", "{%- if ctx.total -%} {{ctx.total}} {%- endif -%}"),
        ("{{ {'total': total} }}", "{{ {'total': ctx.total} }}"),
        ("{# total #}{% raw %}{{ total }}{% endraw %}{{ total }}",
         "{# total #}{% raw %}{{ total }}{% endraw %}{{ ctx.total }}"),
        ("{{ [1] | map(attribute='total') | list + [total] }}", "{{ [1] | map(attribute='total') | list + [ctx.total] }}"),
        ("{% for total in [1] %}{{ total }}{% endfor %}", None),
        ("{% set total = 1 %}{{ total }}", None),
        ("{% for ctx in [1] %}{{ total }}{% endfor %}", None),
        ("{{ other.total }}", None),
        ("{{ total", None),
        ("total", None),
    ],
)  # fmt: skip
def test_only_the_name_itself_is_respelled(template: str, today: str | None) -> None:
    changed = respell(template, {"total": "ctx.total"})
    assert (None if changed is None else changed.text) == today


@pytest.mark.parametrize(
    "own",
    [
        "- step: total\n  set: {total: 1}\n  next: b\n- step: b\n  tool: {kind: noop, input: {x: '{{ total }}'}}",
        "- step: s\n  set: {total: 1}\n  loop: {in: [1], iterator: total}\n  tool: {kind: noop, input: {x: '{{ total }}'}}",
        "- step: s\n  set: {total: 1}\n  tool: [{name: total, kind: noop}, {name: b, kind: noop, input: {x: '{{ total }}'}}]",
        "- step: s\n  set: {result: 1}\n  next: [{step: b, when: '{{ result }}'}]\n- step: b",
    ],
)
def test_a_bare_name_that_means_something_else_keeps_its_meaning(own: str) -> None:
    assert [
        finding for finding in load(workflow(own)).findings if finding.code is Code.OLD_SPELLING
    ] == []


def test_a_workload_key_comes_before_what_is_set() -> None:
    text = yaml.safe_dump(yaml.safe_load(workflow(TOTAL)) | {"workload": {"total": 5}})
    assert load(text).findings == []


def test_a_name_that_no_set_assigns_bare_is_said_to_be_in_ctx() -> None:
    text = workflow(TOTAL.replace("set: {total", "set: {ctx.total"))
    (error,) = load(text).errors
    assert error.hint == "it is set in ctx: write ctx.total"


def test_convert_respells_names_in_the_quotes_and_blocks_they_stand_in() -> None:
    source = workflow(
        """
- step: s
  loop: {in: [1, 2], iterator: row}
  tool:
    kind: noop
    input:
      index: '{{ loop_index }}'  # counted from 0
      block: |
        select {{ total }}
        from x
      folded: >
        first {{ total
        + 1 }} then {{ total }}
        last
      plain: a {{ total }}
      '{{ total }}': ["{{ total }}"]
  set: {total: 1}
""".strip()
    )
    today = source.replace("{{ total", "{{ ctx.total").replace("loop_index", "loop.index")
    assert yaml.safe_load(convert(source).text) == yaml.safe_load(today)
    wanted = [
        line.strip() for line in today.splitlines() if "ctx.total" in line or "loop.index" in line
    ]
    written = [line.strip() for line in convert(source).text.splitlines()]
    assert [line for line in wanted if line not in written] == []
    assert convert(convert(source).text).changes == []
