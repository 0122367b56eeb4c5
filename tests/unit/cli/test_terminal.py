"""What commands print holds no control characters of any data, except tab and newline."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from noetl.cli.output import add_colour, format_log_line, print_table, to_json
from noetl.cli.terminal import SafeStream, escape_control, guard_streams, write_document

HOSTILE = {
    "clear the screen": "\x1b[2J",
    "set the title": "\x1b]0;title\x07",
    "write to the clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "link elsewhere": "\x1b]8;;http://evil.example\x1b\\bank\x1b]8;;\x1b\\",
    "answer back": "\x1b[6n",
    "colour": "\x1b[45m",
    "hide what stands before": "real\rfake",
    "backspace": "abc\x08\x08\x08xyz",
    "C1 sequence": "\x9b2J",
    "C1 OSC": "\x9d52;c;ZXZpbA==\x9c",
    "delete": "\x7f",
    "null": "\x00",
    "shift out": "\x0e",
    "next line": "\x85",
    "override": "\u202egnp.exe",
    "isolates": "\u2066a\u2067b\u2068c\u2069",
    "embedding": "\u202aa\u202bb\u202cc\u202d",
    "marks": "\u200e\u200f\u061c",
    "separators": "\u2028\u2029",
    "half a character": "\ud800",
}


class Terminal(io.StringIO):
    """A terminal that keeps what it was sent."""

    def isatty(self) -> bool:
        return True


@contextmanager
def at_terminal() -> Iterator[Terminal]:
    """Standard output is a terminal meanwhile, as it is for a command."""
    terminal = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "stderr", Terminal())
        patch.delenv("NO_COLOR", raising=False)
        guard_streams()
        yield terminal


def find_controls(text: str) -> set[str]:
    return {character for character in text if escape_control(character) != character}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_control_character_is_printed(text: str) -> None:
    assert find_controls(text)
    with at_terminal() as terminal:
        print(text)
        print(format_log_line({"step": text, "item": None, "stream": "stdout", "line": text}))
        print_table(["name"], [[text]])
        sys.stdout.writelines([text, "\n"])
        sys.stdout.buffer.write(text.encode("utf-8", "surrogatepass"))
    assert find_controls(terminal.getvalue()) == set()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_json_keeps_its_meaning(text: str) -> None:
    with at_terminal() as terminal:
        print(to_json({"value": text}))
    assert find_controls(terminal.getvalue()) == set()
    assert json.loads(terminal.getvalue()) == {"value": text}


def test_the_escape_character_is_shown() -> None:
    with at_terminal() as terminal:
        print("a\tb\x1b[2J\x9b\u202e")
    assert terminal.getvalue() == "a\tb\\x1b[2J\\u009b\\u202e\n"


def test_only_our_own_colours_pass() -> None:
    with at_terminal() as terminal:
        print(add_colour("failed", "failed: \x1b[31mred"))
    assert terminal.getvalue() == "\x1b[31mfailed: \\x1b[31mred\x1b[0m\n"


def test_bytes_of_a_character_may_come_in_two_pieces() -> None:
    with at_terminal() as terminal:
        buffer = sys.stdout.buffer
        for piece in ("\u202e".encode()[:1], "\u202e".encode()[1:], b"\xff"):
            buffer.write(piece)
    assert terminal.getvalue() == "\\u202e\\xff"


def test_a_document_is_written_to_a_file_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", pipe)
    guard_streams()
    write_document("a: \u202e\r\n")
    assert isinstance(sys.stdout, SafeStream)
    assert pipe.buffer.getvalue() == "a: \u202e\r\n".encode()  # type: ignore[attr-defined]


def test_plain_text_of_any_language_is_printed_as_it_is() -> None:
    text = "Grüße, 世界, שלום, مرحبا, 👩‍👩‍👧, naïve\t1\n"
    with at_terminal() as terminal:
        sys.stdout.write(text)
    assert terminal.getvalue() == text
