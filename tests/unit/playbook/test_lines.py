"""The lines at which steps, arcs and admission rules stand."""

from noetl.playbook.lines import StepLines, find_step_lines

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: lines}
workflow:
  - step: plan
    tool: {kind: noop}
    next: score
  - desc: the step is not named first
    step: score
    spec:
      policy:
        admit:
          - when: "{{ false }}"
            then: {allow: false, next: report}
          - else: {allow: true}
    tool: {kind: noop}
    next:
      - step: report
        when: "{{ failed == 0 }}"
      - {step: repair}
  - {step: report, tool: {kind: noop}}
  - step: repair
"""


def test_lines_of_steps_arcs_and_rules_are_those_of_the_text() -> None:
    lines = find_step_lines(PLAYBOOK)
    text = PLAYBOOK.splitlines()
    assert {name: text[found.line - 1].strip(" -") for name, found in lines.items()} == {
        "plan": "step: plan",
        "score": "step: score",
        "report": "{step: report, tool: {kind: noop}}",
        "repair": "step: repair",
    }
    assert [text[line - 1].strip() for line in lines["score"].arcs] == [
        "- step: report",
        "- {step: repair}",
    ]
    assert [text[line - 1].strip() for line in lines["plan"].arcs] == ["next: score"]
    assert [text[line - 1].strip() for line in lines["score"].admit_rules] == [
        '- when: "{{ false }}"',
        "- else: {allow: true}",
    ]


def test_older_spellings_have_the_lines_at_which_they_are_written() -> None:
    older = PLAYBOOK.replace("workflow:", "steps:").replace("noetl.io/v2", "noetl.io/v1")
    assert find_step_lines(older)["repair"].line == find_step_lines(PLAYBOOK)["repair"].line


def test_text_that_is_no_playbook_has_no_lines() -> None:
    for text in ("", "[", "[1, 2]", "workflow: 7", "workflow: [1, {step: [x]}]"):
        assert find_step_lines(text) == {}


def test_a_number_beyond_the_arcs_has_no_line() -> None:
    lines = StepLines(3, arcs=(5,))
    assert (lines.get_arc_line(0), lines.get_arc_line(1), lines.get_rule_line(0)) == (5, None, None)


CODES = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: codes}
workflow:
  - step: block
    tool:
      kind: python
      code: |

        a = 1
        raise ValueError(a)
  - step: inline
    tool: {kind: python, code: "raise ValueError(1)"}
  - step: several
    tool:
      - first: {kind: python, code: "a = 1"}
      - second:
          kind: python
          code: |
            raise ValueError(2)
  - step: folded
    tool: {kind: python, code: "a = 1\\nraise ValueError(3)"}
"""


def test_a_line_of_code_is_found_in_the_text() -> None:
    lines = find_step_lines(CODES)
    text = CODES.splitlines()

    def read(step: str, task: str | None, number: int) -> str | None:
        found = lines[step].find_code_line(task, number)
        return None if found is None else text[found - 1].strip()

    assert read("block", None, 3) == "raise ValueError(a)"
    assert read("block", "task_0", 2) == "a = 1"
    assert read("block", None, 4) == "raise ValueError(a)"
    assert read("inline", None, 1) == 'tool: {kind: python, code: "raise ValueError(1)"}'
    assert read("several", "second", 1) == "raise ValueError(2)"
    assert read("several", None, 1) is None
    assert "\\nraise ValueError(3)" in (read("folded", None, 2) or "")
