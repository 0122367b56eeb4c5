"""Loading: positions, several findings at once, outside kinds, and the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel, ConfigDict
from typer.testing import CliRunner

from noetl.cli import playbooks
from noetl.playbook import text as text_module
from noetl.playbook.findings import MAX_FINDINGS, Code, Finding
from noetl.playbook.model import OutsideTask, PythonTask
from noetl.playbook.validation import PlaybookInvalid, load, load_or_raise, load_registered

HEAD = "metadata: {name: x}\n"


def find_all(body: str) -> list[Finding]:
    return load(HEAD + body).findings


def only(body: str) -> Finding:
    (finding,) = find_all(body)
    return finding


def test_smallest_playbook() -> None:
    playbook = load_or_raise(HEAD + "workflow: [{step: start}]")
    assert playbook.entry_step == "start"
    assert playbook.workflow[0].tool == []


def test_single_task_is_named_by_its_index() -> None:
    playbook = load_or_raise(
        HEAD + "workflow: [{step: a, tool: {kind: python, code: 'result = 1'}}]"
    )
    (task,) = playbook.workflow[0].tool
    assert isinstance(task, PythonTask)
    assert task.name == "task_0"


def test_source_hash_is_of_the_text_as_given() -> None:
    text = HEAD + "workflow: [{step: start}]"
    assert load(text).source_hash == load(text.encode()).source_hash
    assert load(text).source_hash != load(text + "\n").source_hash


def test_template_error_in_a_block_is_at_its_own_line_and_column() -> None:
    body = (
        "workflow:\n  - step: start\n    tool:\n      kind: postgres\n      query: |2\n\n"
        "          select 1\n          where x = {{ workload.x + }}\n"
    )
    finding = only(body)
    assert (finding.code, finding.line, finding.step) == (Code.TEMPLATE_SYNTAX, 9, "start")


def test_template_error_in_a_quoted_text_has_its_column() -> None:
    finding = only('workflow:\n  - step: start\n    set: {ctx.a: "{{ foo }}"}\n')
    assert (finding.code, finding.line, finding.column) == (Code.UNKNOWN_NAME, 4, 22)


def test_python_error_in_a_block_has_its_line_and_column() -> None:
    finding = only(
        "workflow:\n  - step: s\n    tool:\n      kind: python\n      code: |\n        x = 1\n        y = (\n"
    )
    assert (finding.code, finding.line, finding.column) == (Code.PYTHON_SYNTAX, 8, 13)


def test_everything_is_reported_in_one_pass_and_in_order() -> None:
    body = "workflow:\n  - step: a\n    tol: 1\n    next: b\n  - step: a\n    set: {ctx.x: '{{ 1 + }}'}\n"
    findings = find_all(body)
    codes = [finding.code for finding in findings]
    assert codes == [Code.UNKNOWN_KEY, Code.UNKNOWN_STEP, Code.DUPLICATE_STEP, Code.TEMPLATE_SYNTAX]
    assert [finding.line for finding in findings] == sorted(finding.line for finding in findings)


def test_findings_are_bounded_and_errors_come_first() -> None:
    steps = "".join(f"  - step: s{n}\n    bad: 1\n" for n in range(150))
    findings = find_all("workflow:\n" + steps)
    assert len(findings) == MAX_FINDINGS
    assert {finding.severity for finding in findings} == {"error"}


def test_hint_names_what_was_meant() -> None:
    assert only("workflow: [{step: a, nxt: a}]").hint == "did you mean `next`?"
    assert only("workflow: [{step: a, tool: {kind: htp}}]").hint == "did you mean `http`?"
    assert (
        only("workload: {limit: 1}\nworkflow: [{step: a, set: {ctx.x: '{{ limt }}'}}]").hint
        == "did you mean `limit`?"
    )


def test_name_that_is_only_asked_about_may_be_missing() -> None:
    assert (
        find_all(
            "workflow: [{step: a, set: {ctx.x: '{{ nobody | default(1) }}', ctx.y: '{{ z is defined }}'}}]"
        )
        == []
    )


def test_name_of_a_for_block_is_its_own() -> None:
    body = "workflow: [{step: a, set: {ctx.x: '{% for i in range(3) %}{{ i }}{{ loop.index }}{% endfor %}'}}]"
    assert find_all(body) == []


@pytest.mark.parametrize(
    ("body", "message", "hint"),
    [
        (
            "workload: {a: '{{ b }}', b: 1}\nworkflow: [{step: s}]",
            "`b` can never exist here",
            "move that key up",
        ),
        (
            "workload: {a: '{{ nobody }}'}\nworkflow: [{step: s}]",
            "`nobody` can never exist here",
            "workload.nobody",
        ),
        (
            "workload: {a: '{{ job.nobody }}'}\nworkflow: [{step: s}]",
            "`job.nobody` can never exist",
            "`job` has execution_id",
        ),
        (
            "workload: {a: '{{ s.x }}'}\nworkflow: [{step: s}]",
            "`s` can never exist here",
            "workload.s",
        ),
        (
            "workflow: [{step: s, set: {ctx.x: '{{ env.HOST }}'}}]",
            "`env` can never exist here",
            "NOETL_ENV_HOST",
        ),
        (
            "workflow: [{step: s, set: {ctx.x: '{{ now }}'}}]",
            "`now` can never exist here",
            "write now()",
        ),
        (
            "workflow: [{step: s, input: {x: '{{ output.data }}'}}]",
            "`output` can never exist here",
            "once a task has finished",
        ),
        (
            "workflow: [{step: s, set: {ctx.x: '{{ iter.row }}'}}]",
            "`iter.row` can never exist here",
            "`iter` has parent here",
        ),
        (
            "workflow: [{step: s, loop: {in: [1], iterator: row}, set: {ctx.x: '{{ loop.index }}'}}]",
            "`loop.index` can never exist here",
            "`loop` has done, length here",
        ),
        (
            "keychain: [{name: k, kind: static, map: {a: '{{ ctx.x }}'}}]\nworkflow: [{step: s}]",
            "`ctx` can never exist here",
            "steps and arcs can read it",
        ),
        (
            "workbook: [{name: w, tool: {kind: python, code: x, input: {a: '{{ loop.index }}'}}}]\n"
            "workflow: [{step: s, tool: {kind: workbook, name: w}}]",
            "`loop` can never exist here",
            "inside a loop only",
        ),
    ],
)
def test_name_that_does_not_exist_at_run_time_is_refused(
    body: str, message: str, hint: str
) -> None:
    errors = load(HEAD + body).errors
    assert [finding.code for finding in errors] == [Code.UNKNOWN_NAME]
    assert message in errors[0].message
    assert hint in str(errors[0].hint)


def test_a_registered_playbook_is_read_although_a_newer_check_refuses_it() -> None:
    text = HEAD + "workflow: [{step: s, set: {ctx.x: '{{ nobody }}'}}]"
    assert load(text).playbook is None
    assert load_registered(text).workflow[0].step == "s"


class Fax(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: str


def test_outside_kind_is_checked_by_its_own_model() -> None:
    text = HEAD + "workflow: [{step: a, tool: {kind: fax, number: '1', timeout: 3s}}]"
    playbook = load_or_raise(text, kinds={"fax": Fax})
    (task,) = playbook.workflow[0].tool
    assert isinstance(task, OutsideTask)
    assert (task.options, task.timeout) == ({"number": "1"}, "3s")
    (finding,) = load(text.replace("number", "nummer"), kinds={"fax": Fax}).errors[:1]
    assert finding.code == Code.MISSING_FIELD
    assert [item.code for item in load(text).findings] == [Code.UNKNOWN_KIND]


def kind_of(kind: str) -> str:
    return HEAD + f"workflow: [{{step: s, tool: {{kind: {kind}, path: x}}}}]"


def test_a_kind_that_a_package_may_bring_is_a_warning_and_a_slip_an_error() -> None:
    loaded = load(kind_of("checksum"))
    (finding,) = loaded.findings
    assert (finding.code, finding.severity, finding.step) == (Code.UNKNOWN_KIND, "warning", "s")
    assert finding.message == "no tool `checksum` here"
    assert "install the package that brings it" in (finding.hint or "")
    assert loaded.playbook is not None

    for slip, meant in {
        "pyton": "python",
        "Python": "python",
        "postgress": "postgres",
        "chksum": "checksum",
    }.items():
        (finding,) = load(kind_of(slip), kinds={"checksum": None}).findings
        assert (finding.code, finding.severity) == (Code.UNKNOWN_KIND, "error")
        assert finding.hint == f"did you mean `{meant}`?"
    assert load(kind_of("'a b'")).errors[0].message == "unknown kind `a b`"


@pytest.mark.parametrize("kind", ["checksum", "pyton", "'a b'"])
def test_a_registered_playbook_may_use_any_kind(kind: str) -> None:
    assert isinstance(load_registered(kind_of(kind)).workflow[0].tool[0], OutsideTask)


@pytest.mark.parametrize(
    ("step", "message", "hint"),
    [
        (
            "tool: {knd: python, code: x}",
            "`kind` is missing",
            "did you mean `kind:` where it says `knd:`?",
        ),
        (
            "tool: {Kind: python, code: x}",
            "`kind` is missing",
            "did you mean `kind:` where it says `Kind:`?",
        ),
        (
            "tool: [{knd: python, code: x}]",
            "`kind` is missing",
            "did you mean `kind:` where it says `knd:`?",
        ),
        (
            "tool: [{one: {knd: python}}]",
            "`kind` is missing",
            "did you mean `kind:` where it says `knd:`?",
        ),
        ("tool: {code: x}", "`kind` is missing", "name the tool, for example `kind: python`"),
        (
            "tool: {kind: noop, output: {store: s3}}",
            "`store` must be 'auto', 'kv', 'disk', 'object' or 'object_store', not 's3'",
            "`disk` is the store of large results; NOETL_STORAGE_CLOUD_TIER says where that is",
        ),
        (
            "tool: {kind: noop, output: {store: dsk}}",
            "`store` must be 'auto', 'kv', 'disk', 'object' or 'object_store', not 'dsk'",
            "did you mean `disk`?",
        ),
        (
            "next: 5",
            "`next` must name a step, not 5",
            "`next: done`, or `next: [{step: done, when: …}]`",
        ),
        (
            "next: [true]",
            "`next` must name a step, not True",
            "`next: done`, or `next: [{step: done, when: …}]`",
        ),
    ],
)
def test_common_slips_are_understood(step: str, message: str, hint: str) -> None:
    finding = only(f"workflow:\n  - step: a\n    {step}\n")
    assert (finding.severity, finding.step, finding.message, finding.hint) == (
        "error",
        "a",
        message,
        hint,
    )


def test_exception_lists_the_errors() -> None:
    with pytest.raises(
        PlaybookInvalid, match=r"book\.yaml:2:12: error MISSING_FIELD `step` is missing"
    ) as caught:
        load_or_raise(HEAD + "workflow: [{desc: x}]", file="book.yaml")
    assert caught.value.findings


@pytest.mark.parametrize(
    "value",
    [
        "1",
        "text",
        "[1]",
        "{a: {b: 1}}",
        "null",
        "true",
        "[[]]",
        "[{a: 1}]",
        "{rules: 1}",
        "{step: {}}",
    ],
)
@pytest.mark.parametrize(
    "key",
    ["workflow", "workload", "keychain", "workbook", "executor", "metadata", "apiVersion", "steps"],
)
def test_no_type_of_any_top_level_block_breaks_the_checks(key: str, value: str) -> None:
    load(f"{key}: {value}\n")


@pytest.mark.parametrize(
    "value",
    ["1", "text", "[1]", "{a: {b: 1}}", "null", "true", "[[]]", "[{a: 1}]", "{rules: 1}", "{when: {}, then: []}",
     "[{when: 1, then: 2}]", "{kind: {}}", "{in: {}, spec: {mode: {}}}", "{tool: 3}", "{policy: {admit: {rules: [1]}}}"],
)  # fmt: skip
@pytest.mark.parametrize(
    "key",
    ["step", "tool", "next", "loop", "set", "spec", "input", "case", "vars", "retry", "sink", "save", "pass", "when",
     "type", "with", "args", "case_mode", "name"],
)  # fmt: skip
def test_no_type_of_any_step_key_breaks_the_checks(key: str, value: str) -> None:
    step = f"{{{'' if key == 'step' else 'step: a, '}{key}: {value}, tool: {{kind: noop}}}}"
    load(HEAD + f"workflow: [{step if key != 'tool' else '{step: a, tool: ' + value + '}'}]")


# ---- command line ----


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    playbooks.register(made)
    return made


def test_validate_prints_place_code_step_and_hint(app: typer.Typer, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(HEAD + "workflow:\n  - step: start\n    next: nowhere\n")
    result = CliRunner().invoke(app, ["validate", str(file)])
    assert result.exit_code == 1
    assert (
        f"{file}:4:5: error UNKNOWN_STEP there is no step `nowhere` (step start)" in result.stdout
    )
    assert "    steps: start" in result.stdout


def test_strict_makes_warnings_fail(app: typer.Typer, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(HEAD + "workflow: [{step: start}, {step: alone}]\n")
    assert CliRunner().invoke(app, ["validate", str(file)]).exit_code == 0
    assert CliRunner().invoke(app, ["validate", str(file), "--strict"]).exit_code == 1


def test_unreadable_files_exit_with_2(app: typer.Typer, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["validate", str(tmp_path / "none.yaml")]).exit_code == 2
    for command in ("convert", "graph"):
        assert CliRunner().invoke(app, [command, str(tmp_path / "none.yaml")]).exit_code == 2
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    assert CliRunner().invoke(app, ["convert", str(tmp_path / "bytes.yaml")]).exit_code == 2


def test_json_is_one_array(app: typer.Typer, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(HEAD + "workflow: [{step: start, next: gone}]\n")
    (finding,) = json.loads(CliRunner().invoke(app, ["validate", "--json", str(file)]).stdout)
    assert finding == {
        "file": str(file), "line": 2, "column": 26, "step": "start", "code": "UNKNOWN_STEP",
        "message": "there is no step `gone`", "hint": "steps: start", "severity": "error",
    }  # fmt: skip


@pytest.mark.parametrize("command", ["validate", "schema", "convert", "graph"])
def test_help_shows_an_example(app: typer.Typer, command: str) -> None:
    assert "Example" in CliRunner().invoke(app, [command, "--help"]).stdout


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("{ttl: soon}", "is not a duration"),
        ("{scope: week}", "scope"),
        ("{scope: permanent, ttl: 1d}", "a permanent result has no `ttl`"),
    ],
)
def test_a_lifetime_that_makes_no_sense_is_refused(output: str, words: str) -> None:
    with pytest.raises(PlaybookInvalid, match=words):
        load_or_raise(
            HEAD + f"workflow: [{{step: a, tool: {{kind: python, code: x, output: {output}}}}}]"
        )


# ---- state between executions ----


def test_state_is_read_and_assigned() -> None:
    assert find_all("""
workflow:
  - step: a
    tool: {kind: noop, set: {state.total: 1}, spec: {policy: {rules: [{else: {then: {do: continue, set: {state.seen.eu: 1}}}}]}}}
    set: {state.watermark: "{{ state.watermark | default(0) + 1 }}"}
    next: [{step: b, when: "{{ state.set_by_a_person > 1 }}", set: {state.x: 1}}]
  - {step: b}
""") == []  # fmt: skip


def test_parallel_items_assign_state_through_a_reducer_only() -> None:
    body = """
workflow:
  - step: a
    loop: {{in: [1], iterator: item, spec: {{mode: parallel{}}}}}
    tool: {{kind: noop, set: {{state.total: "{{{{ item }}}}"}}}}
"""
    finding = only(body.format(""))
    assert (finding.code, "reduce: {state.total: sum}" in (finding.hint or "")) == (
        Code.PARALLEL_CTX_WRITE,
        True,
    )
    assert find_all(body.format(", reduce: {state.total: sum}")) == []


def test_state_names_no_step_task_or_iterator() -> None:
    for body in (
        "workflow: [{step: state}]",
        "workflow: [{step: a, tool: [{name: state, kind: noop}]}]",
        "workflow: [{step: a, loop: {in: [1], iterator: state}, tool: {kind: noop}}]",
    ):
        assert [finding.code for finding in find_all(body)] == [Code.RESERVED_NAME]


def test_a_workload_key_named_state_keeps_its_meaning_and_forbids_assignments() -> None:
    head = "workload: {state: CA}\nworkflow: [{step: a, tool: {kind: noop, input: {x: '{{ state }}'}}%s}]"
    assert find_all(head % "") == []
    finding = only(head % ", set: {state.n: 1}")
    assert finding.code == Code.SHADOWED_NAME
    assert "workload key" in finding.message


def test_a_state_name_that_cannot_be_kept_is_refused() -> None:
    finding = only(f"workflow: [{{step: a, set: {{state.{'n' * 65}: 1}}}}]")
    assert (finding.code, "at most 64 characters" in finding.message) == (Code.BAD_NAME, True)


def test_too_many_state_names_are_refused() -> None:
    names = ", ".join(f"state.n{number}: 1" for number in range(101))
    findings = find_all(f"workflow: [{{step: a, set: {{{names}}}}}]")
    assert {finding.message for finding in findings} == {
        "the playbook sets 101 names of state, at most 100 are kept"
    }


def test_a_state_name_that_is_almost_one_that_is_set_is_warned_of() -> None:
    finding = only("""
workflow:
  - step: a
    set: {state.watermark: "{{ state.watermrk | default(0) }}"}
""")
    assert (finding.code, finding.severity, finding.hint) == (
        Code.NEVER_SET,
        "warning",
        "did you mean `watermark`?",
    )


def test_state_does_not_exist_in_workload_defaults() -> None:
    finding = only("workload: {since: '{{ state.watermark }}'}\nworkflow: [{step: a}]")
    assert finding.code == Code.UNKNOWN_NAME


def test_a_text_is_read_once_for_all_file_names_and_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str | bytes] = []
    read_document = text_module.read_document

    def count_read(source: str | bytes) -> Any:
        reads.append(source)
        return read_document(source)

    monkeypatch.setattr(text_module, "read_document", count_read)
    text = kind_of("elsewhere") + "\n# a text of this test alone\n"
    unknown = load(text, file="a.yaml")
    known = load(text, file="b.yaml", kinds={"elsewhere": None})
    assert load_registered(text) is known.playbook
    assert [(finding.file, finding.code) for finding in unknown.findings] == [
        ("a.yaml", Code.UNKNOWN_KIND)
    ]
    assert known.findings == []
    assert len(reads) == 1


def test_output_has_the_facts_of_every_tool() -> None:
    for fact in ("http", "pg", "py", "spark"):
        assert find_all(f'workflow: [{{step: s, set: {{ctx.f: "{{{{ output.{fact} }}}}"}}}}]') == []
