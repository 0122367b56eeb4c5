"""A name that a finding suggests works where it is suggested."""

import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.playbook.findings import Code, Finding
from noetl.playbook.validation import load
from tests.examples import count_examples

CORPUS = sorted((Path(__file__).parents[1] / "playbooks" / "good").glob("*.yaml"))
WORD = re.compile(r"(?<![\w./-])[A-Za-z_]\w{2,}(?!\w|\.io)")
KEY = re.compile(r"^( *)([a-z_]{3,}):", re.MULTILINE)
SUGGESTED = re.compile(r"did you mean `([^`]+?):?`")


@cache
def known_findings(text: str) -> frozenset[tuple[int, Code]]:
    return frozenset((finding.line, finding.code) for finding in load(text).findings)


def misspell_word(draw: st.DrawFn, word: str) -> str:
    at = draw(st.integers(1, len(word) - 1))
    letter = draw(st.sampled_from("aeqx_"))
    return draw(
        st.sampled_from(
            [
                word[:at] + word[at + 1 :],
                word[:at] + letter + word[at:],
                word[:at] + letter + word[at + 1 :],
            ]
        )
    )


@st.composite
def misspelled_words(draw: st.DrawFn) -> tuple[str, str, int, str]:
    """(playbook, the same with one word misspelled, where, the misspelled word)."""
    text = draw(st.sampled_from(CORPUS)).read_text()
    word = draw(st.sampled_from(list(WORD.finditer(text))))
    wrong = misspell_word(draw, word[0])
    return text, text[: word.start()] + wrong + text[word.end() :], word.start(), wrong


@st.composite
def additional_keys(draw: st.DrawFn) -> tuple[str, str, int, str]:
    """The same with another key, a misspelled one, above a key that stays."""
    text = draw(
        st.sampled_from([path for path in CORPUS if KEY.search(path.read_text())])
    ).read_text()
    key = draw(st.sampled_from(list(KEY.finditer(text))))
    wrong = misspell_word(draw, key[2])
    at = key.start() + len(key[1])
    return text, f"{text[:at]}{wrong}: 1\n{key[1]}{text[at:]}", at, wrong


def suggestions(changed: str, wrong: str) -> list[tuple[Finding, str]]:
    """Findings about the misspelled word that say what was meant."""
    names = re.compile(rf"(?<!\w){re.escape(wrong)}(?!\w)")
    found = [
        finding
        for finding in load(changed).findings
        if finding.hint and names.search(finding.message)
    ]
    return [
        (finding, meant[1]) for finding in found if (meant := SUGGESTED.match(finding.hint or ""))
    ]


def list_remaining(fixed: str, finding: Finding, known: frozenset[tuple[int, Code]]) -> list[str]:
    """What is still found at the place of a finding after its suggestion was followed, and keys that now stand there twice."""
    new = [other for other in load(fixed).findings if (other.line, other.code) not in known]
    same = [other for other in new if other.line == finding.line and other.code is finding.code]
    twice = [other for other in new if other.code is Code.DUPLICATE_KEY]
    return [str(other) for other in (*same, *twice)]


@settings(max_examples=count_examples(100))
@given(misspelled_words())
def test_a_suggestion_for_a_misspelled_word_works(case: tuple[str, str, int, str]) -> None:
    text, changed, at, wrong = case
    for finding, meant in suggestions(changed, wrong):
        fixed = changed[:at] + meant + changed[at + len(wrong) :]
        assert list_remaining(fixed, finding, known_findings(text)) == [], (
            str(finding),
            finding.hint,
        )


@settings(max_examples=count_examples(100))
@given(additional_keys())
def test_no_key_is_suggested_that_stands_there_already(case: tuple[str, str, int, str]) -> None:
    _, changed, at, wrong = case
    for finding, meant in suggestions(changed, wrong):
        fixed = changed[:at] + meant + changed[at + len(wrong) :]
        assert list_remaining(fixed, finding, frozenset()) == [], (str(finding), finding.hint)


STEP = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: a}\nworkflow:\n- step: a\n  {key}: {value}\n- step: b\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("depends_on", "b"), ("needs", "[b]"), ("on_error", "b"), ("foreach", "[1, 2]"), ("for_each", "'{{ [1] }}'"),
        ("with_items", "[1]"), ("condition", "'{{ true }}'"), ("if", "'{{ true }}'"), ("retries", "3"),
    ],
)  # fmt: skip
def test_a_key_of_another_tool_is_answered_with_one_that_takes_its_value_or_with_how_to_write_it(
    key: str, value: str
) -> None:
    text = STEP.replace("{key}", key).replace("{value}", value)
    (finding,) = [found for found in load(text).errors if found.line == 6]
    assert finding.hint is not None
    assert not finding.hint.startswith("known here")
    meant = SUGGESTED.match(finding.hint)
    if meant is not None:
        assert load(text.replace(key, meant[1])).errors == []
