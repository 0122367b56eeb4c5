"""Reads the text of a playbook: the result is a validated `Playbook`, or findings that say what is
wrong and where.

All checks run, also after one has found errors, on data with positions. So one pass reports
everything. The code is pure; the server, the CLI and the tests may import it.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct, field
from msgspec.structs import replace

from noetl.model.errors import InvalidInput
from noetl.playbook import dialect, text
from noetl.playbook.dialect.editor import Editor
from noetl.playbook.findings import Code, Finding, sort_findings
from noetl.playbook.model import Playbook
from noetl.playbook.validation import (
    code,
    interpreters,
    names,
    overwrites,
    references,
    shape,
    spark,
    sql,
    values,
)
from noetl.playbook.validation.document_facts import DocumentFacts
from noetl.playbook.validation.shape import Kinds, OutsideTasks

__all__ = ["Kinds", "LoadedPlaybook", "PlaybookInvalid", "load", "load_or_raise", "load_registered"]


class LoadedPlaybook(Struct, frozen=True):
    """The result of `load`. `playbook` is None exactly if a finding is an error."""

    playbook: Playbook | None
    findings: list[Finding] = field(default_factory=list)
    source_hash: str = ""

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]


class PlaybookInvalid(InvalidInput):
    """The playbook has errors. `findings` lists everything that was found."""

    code = "PLAYBOOK_INVALID"

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        errors = [finding for finding in findings if finding.severity == "error"]
        lines = [f"the playbook has {len(errors)} error(s)"]
        for finding in errors:
            lines.append(str(finding))
            if finding.hint:
                lines.append(f"    {finding.hint}")
        text_of_errors = "\n".join(lines)
        super().__init__(text_of_errors)


def load(
    source: str | bytes, *, file: str = "<text>", kinds: Kinds | None = None
) -> LoadedPlaybook:
    """Read a playbook, rewrite older spellings, validate.

    `kinds` has the tool kinds beyond the built-in ones, and their config models.
    """
    read = _read_once(source)
    editor = Editor()
    shape.check_outside_tasks(read.outside_tasks, editor, {} if kinds is None else kinds)
    findings = _name_file([*editor.findings, *read.findings], file)
    playbook = read.playbook
    if any(finding.severity == "error" for finding in findings):
        playbook = None
    return LoadedPlaybook(playbook, findings, source_hash(source))


def load_or_raise(
    source: str | bytes, *, file: str = "<text>", kinds: Kinds | None = None
) -> Playbook:
    loaded = load(source, file=file, kinds=kinds)
    if loaded.playbook is None:
        raise PlaybookInvalid(loaded.findings)
    return loaded.playbook


def load_registered(source: str | bytes, *, file: str = "<text>") -> Playbook:
    """Read a playbook from the catalog. It was validated when it was registered.

    A running execution must not stop because this process lacks a package or has a newer check. So
    only a playbook that cannot be read is refused.
    """
    read = _read_once(source)
    if read.playbook is None:
        raise PlaybookInvalid(_name_file(read.findings, file))
    return read.playbook


def _name_file(findings: Iterable[Finding], file: str) -> list[Finding]:
    return sort_findings(replace(finding, file=file) for finding in findings)


def source_hash(source: str | bytes) -> str:
    """The sha256 of the text in hex."""
    if isinstance(source, str):
        source = source.encode("utf-8", "surrogatepass")
    return hashlib.sha256(source).hexdigest()


class _ReadPlaybook(Struct, frozen=True):
    """All that follows from the text alone: neither from the file's name nor from known tools."""

    playbook: Playbook | None  # None if the text has no form of a playbook
    findings: tuple[Finding, ...]  # without the name of the file
    outside_tasks: OutsideTasks


_MAX_SHORT_CHARACTERS = 32_768


def _read_once(source: str | bytes) -> _ReadPlaybook:
    """Read a text once, also if this process is asked for it several times.

    The CLI, the catalog, the server and the worker may be one process, and each reads the playbook.
    They share the result, so nobody may change it.
    """
    if len(source) <= _MAX_SHORT_CHARACTERS:
        return _read_short(source)
    return _read_long(source)


def _read_playbook(source: str | bytes) -> _ReadPlaybook:
    editor = Editor()
    document = text.read_document(source)
    for problem in document.problems:
        at = problem.mark
        finding = Finding(
            editor.file, at.line, at.column, None, problem.code, problem.message, problem.hint
        )
        editor.findings.append(finding)
    if not isinstance(document.data, text.Map):
        if not document.problems:
            editor.add_error(
                document.data,
                None,
                Code.BAD_TYPE,
                "a playbook is a mapping",
                "it begins with `apiVersion: noetl.io/v2`",
            )
        return _ReadPlaybook(None, tuple(editor.findings), ())
    dialect.rewrite(document.data, editor)
    dialect.expand(document.data, editor)
    sql.blank_comments(document.data)
    outside_tasks = shape.find_outside_tasks(document.data)
    playbook = shape.parse(document.data, editor)
    facts = DocumentFacts(document.data, document.lines)
    for check in (
        references.check,
        names.check,
        values.check,
        code.check,
        spark.check,
        sql.check,
        interpreters.check,
        overwrites.check,
    ):
        check(facts, editor)
    return _ReadPlaybook(playbook, tuple(editor.findings), outside_tasks)


# Authors choose the texts, so both caches are bounded, and long texts have a small one of their own.
_read_short = lru_cache(maxsize=32)(_read_playbook)
_read_long = lru_cache(maxsize=2)(_read_playbook)
