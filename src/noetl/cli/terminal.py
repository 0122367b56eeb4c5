"""The streams of a command: no control character of any data reaches the terminal.

A terminal obeys what it is sent: escape sequences write to the clipboard, carriage returns hide what
was printed before, and marks of direction reorder it. Step logs, errors and results are data of
others, so standard output and standard error escape all of these. Only tab and newline pass.

The escapes `\\u009b` mean the same inside JSON, where characters below a space are escaped already.
So the JSON that a command prints keeps its meaning.
"""

import codecs
import io
import os
import re
import sys
from typing import TextIO, cast

_CONTROL = re.compile(
    "["
    "\x00-\x08\x0b-\x1f"  # C0 without tab and newline: ESC, CR, backspace, bell …
    "\x7f-\x9f"  # DEL and C1, where one character starts an escape sequence
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, overrides and isolates of direction
    "\u2028\u2029"  # ends of lines and paragraphs
    "\ud800-\udfff"  # halves of characters, which no encoding can write
    "]"
)
# Stands for the start of a colour in texts that were not printed yet. Data cannot know it.
_COLOUR_START = f"\ufdd0{os.urandom(8).hex()}["


def escape_control(text: str) -> str:
    """Return the text with its control characters shown, such as `\\x1b` for the escape character."""
    return _CONTROL.sub(_show_character, text)


def _show_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}"


def paint_text(text: str, code: int | str | None) -> str:
    """Return the text in a colour (an ANSI code), if standard output is a terminal."""
    is_plain = code is None or not isinstance(sys.stdout, SafeStream)
    if is_plain or not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"{_COLOUR_START}{code}m{text}{_COLOUR_START}0m"


def make_printable(text: str) -> str:
    """Return the text as it is sent to a terminal: escaped, with the colours of `paint_text`."""
    return escape_control(text).replace(_COLOUR_START, "\x1b[")


class SafeStream:
    """A text stream that escapes control characters, except for the colours of `paint_text`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._stream.write(make_printable(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def rich_proxied_file(self) -> object:
        """The stream for `rich`, which moves the cursor. Texts for it go through `make_printable`."""
        stream = getattr(self._stream, "rich_proxied_file", self._stream)
        if isinstance(stream, SafeStream):
            return stream.rich_proxied_file
        return stream

    @property
    def buffer(self) -> io.BufferedIOBase:
        """The stream of bytes, for data that is written to files and pipes as it is."""
        if self._stream.isatty():
            return SafeBuffer(self)
        return cast(io.BufferedIOBase, self._stream.buffer)


class SafeBuffer(io.BufferedIOBase):
    """Bytes of data for a terminal: decoded, then escaped."""

    def __init__(self, stream: SafeStream) -> None:
        self._safe_stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        given = bytes(cast(bytes, data))
        self._safe_stream.write(self._decoder.decode(given))
        return len(given)

    def flush(self) -> None:
        self._safe_stream._stream.flush()


def guard_streams() -> None:
    """Escape what this process prints from now on."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, SafeStream):
            setattr(sys, name, SafeStream(stream))


def write_document(text: str) -> None:
    """Write a text as it is, such as a playbook. On a terminal its control characters are shown."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()
