"""Values inside a second language: text that another interpreter runs.

A value in a shell command or in SQL is data: it is passed beside the text. But if the text around it
is itself a program, such as that of `sh -c` or of `query()`, then the value becomes a part of that
program, and the author of the value decides what runs.
"""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from noetl.playbook.dialect.editor import Editor, Node
from noetl.playbook.findings import Code, Finding
from noetl.playbook.outlines import (
    MARKER_CHARACTER,
    Outline,
    OutlineSpot,
    make_outlines,
)
from noetl.playbook.shelltext import ShellCommandText, split_commands
from noetl.playbook.sqltext import (
    Dialect,
    Token,
    UnterminatedSql,
    drop_comments,
    marker_pattern,
    split_statements,
    tokenize_sql,
)
from noetl.playbook.validation.document_facts import DocumentFacts
from noetl.playbook.validation.names import locate_within
from noetl.playbook.validation.shape import iterate_tasks
from noetl.playbook.validation.sql import find_column, find_sql_texts
from noetl.template.errors import TemplateError
from noetl.template.parsing import parse

_MARKER = marker_pattern(MARKER_CHARACTER)
_SAFE_SOURCE = re.compile(r"\| (int|float|length|count|round|abs)(\([^()]*\))?$|^[0-9.]+$")

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"})
# Options whose next word is a program, by interpreter.
_PROGRAM_OPTIONS: dict[str, re.Pattern[str]] = {
    **dict.fromkeys(_SHELLS, re.compile(r"-[a-zA-Z]*c$")),
    "python": re.compile(r"-[a-zA-Z]*c$"),
    "perl": re.compile(r"-[a-zA-Z0-9]*[eE]$"),
    "ruby": re.compile(r"-[a-zA-Z]*e$"),
    "node": re.compile(r"-[ep]$|--eval$|--print$"),
    "php": re.compile(r"-r$"),
    "lua": re.compile(r"-e$"),
    "Rscript": re.compile(r"-e$"),
    "su": re.compile(r"-c$|--command$"),
    "psql": re.compile(r"-[a-zA-Z]*c$|--command$"),
    "mysql": re.compile(r"-[a-zA-Z]*e$|--execute$"),
    "duckdb": re.compile(r"-c$|-s$"),
}
_OPTIONS_WITH_VALUE = {
    "awk": frozenset({"-F", "-v", "-f", "--field-separator", "--assign", "--file"}),
    "sed": frozenset({"-f", "--file", "-l"}),
    "jq": frozenset({"--arg", "--argjson", "--slurpfile", "--rawfile", "-f", "--indent"}),
}
_VALUES_OF_OPTION = {"--arg": 2, "--argjson": 2, "--slurpfile": 2, "--rawfile": 2}
# Programs whose arguments are another command.
_WRAPPERS = frozenset(
    {
        "find",
        "xargs",
        "sudo",
        "env",
        "nohup",
        "timeout",
        "nice",
        "exec",
        "command",
        "flock",
        "parallel",
    }
    | {"chroot", "setpriv", "docker", "kubectl", "watch", "time", "stdbuf", "strace", "fd"}
)
_SQL_RUNNERS = frozenset(
    {"QUERY", "QUERY_TABLE", "DBLINK", "DBLINK_EXEC", "DBLINK_OPEN", "DBLINK_SEND_QUERY"}
    | {"POSTGRES_QUERY", "POSTGRES_EXECUTE", "MYSQL_QUERY", "MYSQL_EXECUTE", "QUERY_TO_XML"}
    | {"QUERY_TO_XML_AND_XMLSCHEMA", "CURSOR_TO_XML", "TS_STAT", "REFLECT", "JAVA_METHOD"}
)
_ARITHMETIC = re.compile(
    r"\(\([^()]*(?:\([^()]*\)[^()]*)*\)\)"  # `$(( … ))` and `(( … ))`
    r"|\[\[(?:(?!\]\]).)*\s-(?:eq|ne|lt|le|gt|ge)\s(?:(?!\]\]).)*\]\]",
    re.DOTALL,
)
_PASS_ARGUMENT = 'pass it as an argument of the program: `[sh, -c, \'echo "$1"\', sh, "{{ … }}"]`'
_PASS_VARIABLE = (
    'pass it by the environment: `env: {X: "{{ … }}"}`, and read the variable in the program'
)


class CodeNote(Struct, frozen=True):
    """A value that becomes code: what runs it, and how to pass the value instead."""

    spot: OutlineSpot
    language: str
    hint: str


def check(world: DocumentFacts, editor: Editor) -> None:
    for step, task in iterate_tasks(world.document):
        editor.step = step
        if task.get("kind") == "shell":
            _check_shell_task(task, world, editor)
    for step, (holder, key, dialect) in find_sql_texts(world.document):
        editor.step = step
        notes: dict[CodeNote, None] = {}
        for outline in _outline_text(holder[key]):
            notes |= dict.fromkeys(_find_sql_notes(outline, dialect))
        _report(holder, key, notes, world, editor)
    editor.step = None


def _check_shell_task(task: Node, world: DocumentFacts, editor: Editor) -> None:
    commands = task.get("cmds")
    if isinstance(commands, str):
        _check_script(task, "cmds", world, editor)
        return
    if not isinstance(commands, list):
        return
    for index, command in enumerate(commands):
        if isinstance(command, str):
            _check_script(commands, index, world, editor)
        elif isinstance(command, list):
            _check_arguments(command, world, editor)


def _check_script(
    holder: Node | list[str], key: str | int, world: DocumentFacts, editor: Editor
) -> None:
    source = holder[key]  # type: ignore[index]  # a map with text keys, or a list
    notes: dict[CodeNote, None] = {}
    for outline in _outline_text(source):
        notes |= dict.fromkeys(_find_shell_notes(outline))
    _report(holder, key, notes, world, editor)


def _check_arguments(arguments: list[object], world: DocumentFacts, editor: Editor) -> None:
    """Check a command that is a list: its items are words as they are."""
    outlines = []
    for argument in arguments:
        given = list(_outline_text(argument)) if isinstance(argument, str) else []
        outlines.append(given[0] if given else Outline(str(argument), ()))
    words = [outline.text for outline in outlines]
    command = ShellCommandText(words, [], 0, False)
    for position, language, hint in _find_programs(command):
        outline = outlines[position]
        notes = dict.fromkeys(_note_values(outline.text, outline, language, hint))
        _report(arguments, position, notes, world, editor)


def _outline_text(source: str) -> Iterator[Outline]:
    if "{{" not in source:
        return
    try:
        template = parse(source)
    except TemplateError:
        return  # `names` has reported it
    yield from make_outlines(template)


def _report(
    holder: object,
    key: str | int,
    notes: dict[CodeNote, None],
    world: DocumentFacts,
    editor: Editor,
) -> None:
    if not notes:
        return
    mark = editor.get_value_mark(holder, key)
    for note in notes:
        source = holder[key]  # type: ignore[index]
        column = find_column(source, note.spot.line)
        at = locate_within(mark, world.lines, note.spot.line, column)
        message = (
            f"`{{{{ {note.spot.source} }}}}` becomes part of {note.language}, "
            "so a value with the right characters runs as code"
        )
        editor.findings.append(
            Finding(
                editor.file,
                at.line,
                at.column,
                editor.step,
                Code.VALUE_AS_CODE,
                message,
                note.hint,
                "warning",
            )
        )


def _note_values(text: str, outline: Outline, language: str, hint: str) -> Iterator[CodeNote]:
    for marker in _MARKER.findall(text):
        spot = outline.spots[int(marker.strip(MARKER_CHARACTER))]
        if not _SAFE_SOURCE.search(spot.source):
            yield CodeNote(spot, language, hint)


# ---- shell -------------------------------------------------------------------------------------------------------------


def _find_shell_notes(outline: Outline) -> Iterator[CodeNote]:
    commands = split_commands(outline.text)
    for command in commands:
        for position, language, hint in _find_programs(command):
            yield from _note_values(command.words[position], outline, language, hint)
        yield from _find_input_notes(command, commands, outline)
    for arithmetic in _ARITHMETIC.finditer(outline.text):
        hint = 'check it first: `{{ x | int }}`, or compare with `[ "$X" -eq 1 ]`'
        yield from _note_values(arithmetic[0], outline, "arithmetic of the shell", hint)


def _find_programs(command: ShellCommandText) -> Iterator[tuple[int, str, str]]:
    """Yield (position, language, hint) of each word that another interpreter runs."""
    words = command.words
    start = _skip_assignments(words)
    while start < len(words):
        name = _name_program(words[start])
        yield from _find_own_programs(words, start, name)
        if name not in _WRAPPERS:
            return
        following = range(start + 1, len(words))
        start = next((n for n in following if _is_interpreter(_name_program(words[n]))), len(words))


def _is_interpreter(name: str) -> bool:
    return (
        name in _PROGRAM_OPTIONS
        or name in _OPTIONS_WITH_VALUE
        or name in _WRAPPERS
        or name in ("eval", "ssh")
    )


def _find_own_programs(
    words: Sequence[str], start: int, name: str
) -> Iterator[tuple[int, str, str]]:
    following = range(start + 1, len(words))
    if name in ("eval", "trap", "let"):
        hint = "leave it out: a value is data in every other word of a command"
        for position in following:
            yield position, f"the words of `{name}`", hint
    elif name == "ssh":
        arguments = [n for n in following if not words[n].startswith("-")]
        for position in arguments[1:]:
            hint = "the other machine's shell reads it: send it by standard input"
            yield position, "a command for the shell of another machine", hint
    elif name in _PROGRAM_OPTIONS:
        option = _PROGRAM_OPTIONS[name]
        hint = _PASS_ARGUMENT if name in _SHELLS else _PASS_VARIABLE
        for position in following:
            if option.match(words[position]) and position + 1 < len(words):
                shown = f"`{name} {_MARKER.sub('…', words[position])}`"
                yield position + 1, f"the program of {shown}", hint
                return
            if not words[position].startswith(("-", "+")) and name not in ("psql", "mysql", "su"):
                return  # a file, and its arguments are data
    elif name in _OPTIONS_WITH_VALUE:
        place = _find_first_argument(words, start, _OPTIONS_WITH_VALUE[name])
        if place is not None:
            hint = {
                "awk": "pass it with `-v x={{ … }}`, and use `x` in the program",
                "jq": "pass it with `--arg x {{ … }}`, and use `$x` in the program",
                "sed": "use another program: `sed` cannot take a value as data",
            }[name]
            yield place, f"the program of `{name}`", hint


def _find_first_argument(words: Sequence[str], start: int, options: frozenset[str]) -> int | None:
    position = start + 1
    while position < len(words):
        word = words[position]
        if word in ("-e", "--expression"):
            return position + 1 if position + 1 < len(words) else None
        if word in ("-f", "--file"):
            return None  # the program is a file
        if word in options:
            position += 1 + _VALUES_OF_OPTION.get(word, 1)
        elif word.startswith("-") and len(word) > 1:
            position += 1
        else:
            return position
    return None


def _find_input_notes(
    command: ShellCommandText, commands: Sequence[ShellCommandText], outline: Outline
) -> Iterator[CodeNote]:
    """Find values in what an interpreter reads from its standard input."""
    start = _skip_assignments(command.words)
    words = command.words[start:]
    while words and _name_program(words[0]) in _WRAPPERS:
        words = words[1:]
    if not words or not _reads_program(words):
        return
    name = _name_program(words[0])
    for heredoc in command.heredocs:
        language = f"a here-document that `{name}` runs"
        yield from _note_values(heredoc, outline, language, _PASS_VARIABLE)
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("<<<"):
            language = f"a text that `{name}` runs"
            yield from _note_values(word + following, outline, language, _PASS_VARIABLE)
    if not command.is_piped:
        return
    for earlier in commands:
        if earlier is command:
            return
        if earlier.pipeline == command.pipeline:
            language = f"the input that `{name}` runs"
            text = " ".join([*earlier.words, *earlier.heredocs])
            yield from _note_values(text, outline, language, _PASS_VARIABLE)


def _reads_program(words: Sequence[str]) -> bool:
    """Whether the command is an interpreter that reads its program from standard input."""
    name = _name_program(words[0])
    if name not in _PROGRAM_OPTIONS or name == "su":
        return False
    if name in ("psql", "mysql", "duckdb"):
        option = _PROGRAM_OPTIONS[name]
        return not any(option.match(word) or word in ("-f", "--file") for word in words[1:])
    for word in words[1:]:
        if word.startswith("<"):
            return True
        if word in ("-s", "-"):
            return True
        if _PROGRAM_OPTIONS[name].match(word) or not word.startswith("-"):
            return False
    return True


def _skip_assignments(words: Sequence[str]) -> int:
    start = 0
    while start < len(words) and re.match(r"[A-Za-z_]\w*=", words[start]):
        start += 1
    return start


def _name_program(word: str) -> str:
    name = word.rpartition("/")[2]
    if re.fullmatch(r"python[0-9.]*", name):
        return "python"
    if name in ("gawk", "mawk", "nawk"):
        return "awk"
    if name == "nodejs":
        return "node"
    if name == "gsed":
        return "sed"
    return name


# ---- SQL ---------------------------------------------------------------------------------------------------------------


def _find_sql_notes(outline: Outline, dialect: Dialect) -> Iterator[CodeNote]:
    try:
        statements = list(split_statements(tokenize_sql(outline.text, MARKER_CHARACTER, dialect)))
    except UnterminatedSql:
        return  # one branch of a template may end within quotes
    for statement in statements:
        tokens = [token for token in drop_comments(statement) if token.text.strip()]
        for number, token in enumerate(tokens):
            yield from _find_runner_notes(tokens, number, outline)
            if token.word == "EXECUTE":
                yield from _find_execute_notes(tokens, number, outline)
            if token.kind == "dollar" and re.search(r"\bexecute\b", token.text, re.IGNORECASE):
                hint = "write `EXECUTE … USING …`, or let the step's own query have the value"
                language = "a block that runs SQL with `EXECUTE`"
                yield from _note_values(token.text, outline, language, hint)


def _find_runner_notes(
    tokens: Sequence[Token], number: int, outline: Outline
) -> Iterator[CodeNote]:
    name = tokens[number].word
    if name not in _SQL_RUNNERS or number + 1 >= len(tokens) or tokens[number + 1].text != "(":
        return
    arguments = _split_arguments(tokens, number + 1)
    if name.startswith("DBLINK") and len(arguments) > 1:
        arguments = arguments[1:]  # the first one names the connection
    hint = "write the statement without this function, where a value is a bound parameter"
    for argument in arguments:
        text = "".join(token.text for token in argument)
        yield from _note_values(text, outline, f"the SQL that `{name.lower()}()` runs", hint)


def _split_arguments(tokens: Sequence[Token], opening: int) -> list[list[Token]]:
    arguments: list[list[Token]] = [[]]
    depth = 0
    for token in tokens[opening:]:
        if token.text == "(":
            depth += 1
        elif token.text == ")":
            depth -= 1
        if depth == 0:
            break
        if token.text == "," and depth == 1:
            arguments.append([])
        else:
            arguments[-1].append(token)
    return arguments


def _find_execute_notes(
    tokens: Sequence[Token], number: int, outline: Outline
) -> Iterator[CodeNote]:
    """`EXECUTE IMMEDIATE`, `EXECUTE format(…)` and `EXECUTE '…'`. A prepared statement is fine."""
    following = tokens[number + 1 :]
    if not following:
        return
    first = following[0]
    is_dynamic = first.word in ("IMMEDIATE", "FORMAT") or not first.word
    if not is_dynamic:
        return
    text = []
    for token in following:
        if token.word == "USING":
            break
        text.append(token.text)
    hint = "put a parameter there, and the value after `USING`: `EXECUTE IMMEDIATE '… ?' USING {{ … }}`"
    yield from _note_values("".join(text), outline, "the SQL that `EXECUTE` runs", hint)
