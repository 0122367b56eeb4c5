"""Conversion keeps comments and order, and refuses what it cannot say."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from noetl.cli import playbooks
from noetl.playbook.convert import convert
from noetl.playbook.validation import PlaybookInvalid, load

OLD = """\
# about the playbook
apiVersion: noetl.io/v10
metadata: {name: x}   # its name
workload:
  # how many
  n: 3
workflow:
  # the first
  - step: start
    tool:
      kind: http
      # the address
      endpoint: "http://a"  # local
      args: {a: 'quoted'}
    # about vars
    vars:
      x: "{{ result.n }}"  # inside vars
    # about retry
    retry:  # at retry
      - when: "{{ error.retryable }}"  # in a rule
        then: {max_attempts: 3}
    next: end
  - step: end  # the end
# the last word
"""


def test_every_comment_survives() -> None:
    written = convert(OLD).text
    for line in OLD.splitlines():
        if "#" in line:
            assert written.count(line[line.index("#") :].strip()) == 1, line


def test_converted_text_is_current_and_means_the_same() -> None:
    written = convert(OLD).text
    assert load(written).findings == []
    assert load(written).playbook == load(OLD).playbook
    assert "apiVersion: noetl.io/v2" in written
    assert 'url: "http://a"' in written
    assert "'quoted'" in written


def test_current_spelling_is_returned_untouched() -> None:
    text = "metadata:   {name: x}\nworkflow: [ {step: start} ] # odd   spacing\n"
    assert convert(text).text == text
    assert convert(text).changes == []


def test_shared_nodes_are_converted_once_for_all() -> None:
    text = "metadata: {name: x}\nworkflow:\n  - step: a\n    tool: &t {kind: http, endpoint: 'http://a'}\n    next: b\n"
    text += "  - step: b\n    tool: *t\n"
    written = convert(text).text
    assert load(written).playbook == load(text).playbook
    assert "endpoint" not in written


@pytest.mark.parametrize("text", ["a: [", "- 1", "a: 1\na: 2", "x" * 2_000_000])
def test_unreadable_text_is_refused_with_findings(text: str) -> None:
    with pytest.raises(PlaybookInvalid) as caught:
        convert(text)
    assert caught.value.findings


def test_form_without_equivalent_is_refused() -> None:
    text = "metadata: {name: x}\nworkflow: [{step: a, sink: {tool: {kind: postgres, table: t, command: x}}}]\n"
    with pytest.raises(PlaybookInvalid, match="OLD_FORM"):
        convert(text)


def test_command_line_writes_in_place_when_asked(tmp_path: Path) -> None:
    app = typer.Typer()
    playbooks.register(app)
    file = tmp_path / "old.yaml"
    file.write_text(OLD)
    shown = CliRunner().invoke(app, ["convert", str(file)])
    assert shown.exit_code == 0
    assert file.read_text() == OLD
    assert CliRunner().invoke(app, ["convert", str(file), "--write"]).exit_code == 0
    assert file.read_text() == shown.stdout
    assert CliRunner().invoke(app, ["validate", str(file), "--strict"]).exit_code == 0
