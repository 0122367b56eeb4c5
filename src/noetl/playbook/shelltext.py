"""Splits shell scripts into simple commands, well enough to see which word each value stands in.

It knows quotes, comments, separators, here-documents and substitutions. It is no parser of the shell:
a construct that it does not know ends as ordinary words.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

_HEREDOC = re.compile(r"<<-?[ \t]*(['\"\\]?)([\w.]+)['\"]?")
_SEPARATOR = re.compile(r"\|\||&&|;;|\|&|[;|&\n()]")
_WORDS_BETWEEN_COMMANDS = frozenset(
    {"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!", "time"}
)


class ShellCommandText(Struct):
    """A simple command: its words without their quotes, and what it reads.

    `is_piped`: it reads what the commands before it in `pipeline` write.
    """

    words: list[str]
    heredocs: list[str]
    pipeline: int
    is_piped: bool


def split_commands(script: str) -> list[ShellCommandText]:
    """Return the simple commands of a script, those of substitutions included."""
    return _Splitter(script).split()


class _Splitter:
    def __init__(self, script: str) -> None:
        self._script = script
        self._position = 0
        self._commands: list[ShellCommandText] = []
        self._nested: list[str] = []  # scripts of substitutions
        self._delimiters: list[tuple[str, ShellCommandText]] = []  # of here-documents to come
        self._pipeline = 0
        self._current = self._begin(is_piped=False)

    def _begin(self, *, is_piped: bool) -> ShellCommandText:
        if not is_piped:
            self._pipeline += 1
        return ShellCommandText([], [], self._pipeline, is_piped)

    def split(self) -> list[ShellCommandText]:
        while self._position < len(self._script):
            self._take_next()
        self._end_command("\n")
        for number, script in enumerate(self._nested):
            for command in split_commands(script):
                command.pipeline -= (number + 1) * 1_000_000  # never one of this script
                self._commands.append(command)
        return self._commands

    def _take_next(self) -> None:
        script, start = self._script, self._position
        character = script[start]
        if character in " \t" or script.startswith("\\\n", start):
            self._position += 1 if character in " \t" else 2
            return
        if character == "#":
            self._position = _find_or_end(script, "\n", start)
            return
        heredoc = _HEREDOC.match(script, start)
        if heredoc is not None and not script.startswith("<<<", start):
            self._delimiters.append((heredoc[2], self._current))
            self._position = heredoc.end()
            return
        separator = _SEPARATOR.match(script, start)
        if separator is not None:
            self._position = separator.end()
            self._end_command(separator[0])
            return
        self._take_word()

    def _end_command(self, separator: str) -> None:
        if self._current.words or self._current.heredocs:
            self._commands.append(self._current)
        elif separator != "|":
            self._pipeline += 1
        self._current = self._begin(is_piped=separator in ("|", "|&"))
        if separator == "\n":
            self._take_heredocs()

    def _take_heredocs(self) -> None:
        for delimiter, command in self._delimiters:
            pattern = re.compile(rf"^\t*{re.escape(delimiter)}$", re.MULTILINE)
            end = pattern.search(self._script, self._position)
            stop = len(self._script) if end is None else end.start()
            command.heredocs.append(self._script[self._position : stop])
            self._position = len(self._script) if end is None else end.end()
        self._delimiters.clear()

    def _take_word(self) -> None:
        word = "".join(self._read_word())
        if self._current.words or word not in _WORDS_BETWEEN_COMMANDS:
            self._current.words.append(word)

    def _read_word(self) -> Iterator[str]:
        script = self._script
        while self._position < len(script):
            character = script[self._position]
            if character in " \t" or _SEPARATOR.match(script, self._position):
                return
            if character == "\\":
                yield script[self._position + 1 : self._position + 2]
                self._position += 2
            elif character == "'":
                end = _find_or_end(script, "'", self._position + 1)
                yield script[self._position + 1 : end]
                self._position = end + 1
            elif character == '"':
                yield self._read_double_quotes()
            elif script.startswith("$(", self._position):
                yield self._read_substitution()
            elif character == "`":
                end = _find_or_end(script, "`", self._position + 1)
                self._nested.append(script[self._position + 1 : end])
                yield script[self._position : end + 1]
                self._position = end + 1
            else:
                yield character
                self._position += 1

    def _read_double_quotes(self) -> str:
        script = self._script
        parts: list[str] = []
        self._position += 1
        while self._position < len(script) and script[self._position] != '"':
            if script.startswith("$(", self._position):
                parts.append(self._read_substitution())
                continue
            if script[self._position] == "\\":
                self._position += 1
            parts.append(script[self._position : self._position + 1])
            self._position += 1
        self._position += 1
        return "".join(parts)

    def _read_substitution(self) -> str:
        """Read `$( … )` and keep its script for itself. Returns its text."""
        script, start = self._script, self._position
        depth = 0
        position = start + 1
        while position < len(script):
            character = script[position]
            if character == "(":
                depth += 1
            elif character == ")":
                depth -= 1
            elif character == "'":
                position = _find_or_end(script, "'", position + 1)
            position += 1
            if depth == 0:
                break
        self._position = position
        inner = script[start + 2 : position - 1]
        if not inner.startswith("("):  # `$(( … ))` is arithmetic
            self._nested.append(inner)
        return script[start:position]


def _find_or_end(script: str, wanted: str, start: int) -> int:
    position = script.find(wanted, start)
    return len(script) if position < 0 else position
