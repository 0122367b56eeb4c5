"""Playbook text in; a validated `Playbook`, or findings that say what is wrong and where, out.

Every check runs whatever the others found, on data that still knows its positions, so one pass reports everything.
"""

import hashlib
from dataclasses import dataclass, field

from noetl.model.errors import InvalidInput
from noetl.playbook import dialect, text
from noetl.playbook.dialect.editor import Editor
from noetl.playbook.findings import Code, Finding, in_order
from noetl.playbook.model import Playbook
from noetl.playbook.validation import code, names, overwrites, references, shape, spark, sql, values
from noetl.playbook.validation.shape import AnyKind, Kinds
from noetl.playbook.validation.world import World

__all__ = ["Kinds", "LoadedPlaybook", "PlaybookInvalid", "load", "load_or_raise", "load_registered"]


@dataclass(frozen=True, slots=True)
class LoadedPlaybook:
    """`playbook` is None exactly when a finding is an error."""

    playbook: Playbook | None
    findings: list[Finding] = field(default_factory=list)
    source_hash: str = ""

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]


class PlaybookInvalid(InvalidInput):
    """The playbook has errors; `findings` lists everything that was found."""

    code = "PLAYBOOK_INVALID"

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        errors = [finding for finding in findings if finding.severity == "error"]
        lines = [
            f"{finding}" + (f"\n    {finding.hint}" if finding.hint else "") for finding in errors
        ]
        super().__init__(f"the playbook has {len(errors)} error(s)\n" + "\n".join(lines))


def load(
    source: str | bytes, *, file: str = "<text>", kinds: Kinds | None = None
) -> LoadedPlaybook:
    """Read, rewrite older spellings, validate. `kinds`: tool kinds beyond the built-in ones and their config models."""
    editor = Editor(file)
    playbook = _read(source, editor, {} if kinds is None else kinds)
    found = in_order(editor.findings)
    failed = any(finding.severity == "error" for finding in found)
    return LoadedPlaybook(None if failed else playbook, found, source_hash(source))


def load_or_raise(
    source: str | bytes, *, file: str = "<text>", kinds: Kinds | None = None
) -> Playbook:
    loaded = load(source, file=file, kinds=kinds)
    if loaded.playbook is None:
        raise PlaybookInvalid(loaded.findings)
    return loaded.playbook


def load_registered(source: str | bytes, *, file: str = "<text>") -> Playbook:
    """One that is in the catalog. It was validated when it was registered. A running execution must not stop because this
    process lacks a package, or knows a check that did not exist then: only what cannot be read is refused."""
    editor = Editor(file)
    playbook = _read(source, editor, AnyKind())
    if playbook is None:
        raise PlaybookInvalid(in_order(editor.findings))
    return playbook


def source_hash(source: str | bytes) -> str:
    """sha256 of the text as it was given, in hex."""
    raw = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    return hashlib.sha256(raw).hexdigest()


def _read(source: str | bytes, editor: Editor, kinds: Kinds) -> Playbook | None:
    document = text.read(source)
    for problem in document.problems:
        at = problem.mark
        editor.findings.append(
            Finding(
                editor.file, at.line, at.column, None, problem.code, problem.message, problem.hint
            )
        )
    if not isinstance(document.data, text.Map):
        if not document.problems:
            editor.fault(
                document.data,
                None,
                Code.BAD_TYPE,
                "a playbook is a mapping",
                "it begins with `apiVersion: noetl.io/v2`",
            )
        return None
    dialect.rewrite(document.data, editor)
    dialect.expand(document.data, editor)
    sql.blank_comments(document.data)
    playbook = shape.parse(document.data, editor, kinds)
    world = World(document.data, document.lines)
    for check in (
        references.check,
        names.check,
        values.check,
        code.check,
        spark.check,
        sql.check,
        overwrites.check,
    ):
        check(world, editor)
    return playbook
