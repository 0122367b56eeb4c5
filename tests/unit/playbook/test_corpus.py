"""Every playbook of the corpus: the good ones load, the broken ones are found out at the right line."""

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from noetl.cli import playbooks
from noetl.playbook import graph
from noetl.playbook.convert import convert
from noetl.playbook.validation import load

CORPUS = Path(__file__).parents[2] / "playbooks"
GOOD = sorted((CORPUS / "good").glob("*.yaml"))
BROKEN = sorted((CORPUS / "broken").glob("*.yaml"))
EXPECT = re.compile(r"^# expect: (\d+) ([A-Z_]+) ?(.*)$", re.MULTILINE)


def name(path: Path) -> str:
    return path.stem


def cli() -> typer.Typer:
    app = typer.Typer()
    playbooks.register(app)
    return app


def test_the_corpus_is_large() -> None:
    assert len(GOOD) >= 65
    assert len(BROKEN) >= 125


@pytest.mark.parametrize("path", GOOD, ids=name)
def test_good(path: Path) -> None:
    loaded = load(path.read_text(), file=path.name)
    assert [str(finding) for finding in loaded.findings if finding.severity != "note"] == []
    assert loaded.playbook is not None
    old = path.name.startswith(("old_", "v1_"))
    assert bool(loaded.findings) is old, "older spellings are noted, current ones are not"


@pytest.mark.parametrize("path", GOOD, ids=name)
def test_converted_playbook_means_the_same_and_has_nothing_left_to_convert(path: Path) -> None:
    converted = convert(path.read_text()).text
    loaded = load(converted)
    assert loaded.findings == []
    assert loaded.playbook == load(path.read_text()).playbook


@pytest.mark.parametrize("path", GOOD, ids=name)
def test_drawn(path: Path) -> None:
    playbook = load(path.read_text()).playbook
    assert playbook is not None
    for step in playbook.workflow:
        assert step.step in graph.draw_tree(playbook)
        assert f'"{step.step}<br/>' in graph.draw_mermaid(playbook)


@pytest.mark.parametrize("path", BROKEN, ids=name)
def test_broken(path: Path) -> None:
    source = path.read_text()
    found = [
        finding for finding in load(source, file=path.name).findings if finding.severity != "note"
    ]
    expected = EXPECT.findall(source)
    assert expected, "the first lines say what is expected"
    for line, code, words in expected:
        match = [
            item
            for item in found
            if (item.line, item.code) == (int(line), code) and words in item.message
        ]
        assert match, f"{line} {code} {words} not among {[str(item) for item in found]}"
        found.remove(match[0])
    assert [str(item) for item in found] == []


def test_cli_accepts_the_good_folder() -> None:
    result = CliRunner().invoke(cli(), ["validate", str(CORPUS / "good"), "--quiet", "--strict"])
    assert result.exit_code == 0, result.output


def test_cli_refuses_the_broken_folder() -> None:
    result = CliRunner().invoke(cli(), ["validate", str(CORPUS / "broken"), "--json"])
    assert result.exit_code == 1
    findings = json.loads(result.stdout)
    assert {Path(finding["file"]).name for finding in findings} == {path.name for path in BROKEN}
    assert set(findings[0]) == {
        "file",
        "line",
        "column",
        "step",
        "code",
        "message",
        "hint",
        "severity",
    }
