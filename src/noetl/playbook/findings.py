"""The findings of validation: one `Finding` per problem, with its place and a stable code.

Codes are part of the public interface (`noetl validate --json`, the API, editors). New codes may be
added, but a code is never renamed.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

Severity = Literal["error", "warning", "note"]

MAX_FINDINGS = 100  # findings reported for one playbook
_RANK = {"error": 0, "warning": 1, "note": 2}


class Code(StrEnum):
    """Every code, with the sentence that documents it."""

    description: str

    def __new__(cls, value: str, description: str) -> "Code":
        code = str.__new__(cls, value)
        code._value_ = value
        code.description = description
        return code

    YAML_SYNTAX = (
        "YAML_SYNTAX",
        "the text is not YAML, not UTF-8, or holds more or less than one document",
    )
    YAML_LIMIT = (
        "YAML_LIMIT",
        "too large, too deep, too many nodes, or an alias that contains itself",
    )
    YAML_TAG = "YAML_TAG", "a YAML tag such as !!python/object; playbooks are plain data"
    YAML_VALUE = "YAML_VALUE", "a number that is not a finite 64-bit number"
    DUPLICATE_KEY = "DUPLICATE_KEY", "one key twice in one mapping"
    BAD_KEY = "BAD_KEY", "a mapping key that is not text"
    UNKNOWN_KEY = "UNKNOWN_KEY", "a key the language does not have at this place"
    MISSING_FIELD = "MISSING_FIELD", "a required field is absent"
    BAD_TYPE = "BAD_TYPE", "a value of the wrong type: text where a list belongs, and the like"
    BAD_VALUE = "BAD_VALUE", "a value of the right type that means nothing here"
    BAD_NAME = "BAD_NAME", "a step, task or iterator name that templates could not use"
    BAD_DURATION = "BAD_DURATION", "not a duration such as 100ms, 2s, 5m, 2h or 1d"
    BAD_GUARD = "BAD_GUARD", "a condition that is neither a template nor true/false"
    UNKNOWN_KIND = (
        "UNKNOWN_KIND",
        "a tool kind nobody provides; a warning when a package that is not installed here may bring it",
    )
    UNKNOWN_STEP = "UNKNOWN_STEP", "a step is named that does not exist"
    UNKNOWN_TASK = (
        "UNKNOWN_TASK",
        "a jump to a task that does not exist, or a workbook task that does not exist",
    )
    UNKNOWN_NAME = (
        "UNKNOWN_NAME",
        "a template uses a name that can never exist where it is rendered",
    )
    UNKNOWN_KEYCHAIN = "UNKNOWN_KEYCHAIN", "`keychain.x` without an entry x in the keychain"
    UNKNOWN_PLAYBOOK = (
        "UNKNOWN_PLAYBOOK",
        "a child is named that is not registered where this playbook is",
    )
    UNKNOWN_CREDENTIAL = (
        "UNKNOWN_CREDENTIAL",
        "a credential is named that is not stored where this playbook is registered",
    )
    DUPLICATE_STEP = "DUPLICATE_STEP", "two steps of one name"
    DUPLICATE_TASK = "DUPLICATE_TASK", "two tasks of one name in a pipeline or in the workbook"
    DUPLICATE_ENTRY = "DUPLICATE_ENTRY", "two keychain entries of one name"
    RESERVED_NAME = "RESERVED_NAME", "a step, task or iterator is named like a scope name"
    SHADOWED_NAME = (
        "SHADOWED_NAME",
        "a step or iterator hides a workload key or a step of the same name",
    )
    UNREACHABLE_STEP = "UNREACHABLE_STEP", "no arc leads to the step"
    UNREACHABLE_ARC = "UNREACHABLE_ARC", "an arc or rule behind one that always matches"
    NOT_AN_ERROR_ARC = (
        "NOT_AN_ERROR_ARC",
        "a guard on `output.http` and the like, which does not handle a failure",
    )
    FINAL_STEP_ARC = (
        "FINAL_STEP_ARC",
        "an arc leads to the final step, which runs by itself at the end",
    )
    TEMPLATE_SYNTAX = "TEMPLATE_SYNTAX", "a template that does not parse"
    TEMPLATE_IN_CODE = "TEMPLATE_IN_CODE", "`{{ }}` in code, which is never rendered"
    NEVER_SET = (
        "NEVER_SET",
        "`ctx.x` or `state.x` is read, nothing sets it, and something sets a name like it",
    )
    PYTHON_SYNTAX = "PYTHON_SYNTAX", "Python code that does not compile"
    SQL_PLACE = "SQL_PLACE", "a value in SQL stands where a name, a keyword or a statement belongs"
    SQL_ESCAPED = "SQL_ESCAPED", "the quotes of a value in SQL are doubled, which is not needed"
    VALUE_AS_CODE = (
        "VALUE_AS_CODE",
        "a value becomes part of a text that another interpreter runs, such as `sh -c` or `query()`",
    )
    FORBIDDEN_CONF = "FORBIDDEN_CONF", "a Spark setting a playbook may not change"
    PARALLEL_CTX_WRITE = (
        "PARALLEL_CTX_WRITE",
        "parallel iterations write one ctx name and no reducer says how to combine",
    )
    UPSERT_WITHOUT_KEY = "UPSERT_WITHOUT_KEY", "mode upsert needs the columns that identify a row"
    LAST_WRITE_WINS = "LAST_WRITE_WINS", "every item or page replaces what the one before it wrote"
    IGNORED_FIELD = "IGNORED_FIELD", "a field that has no effect in this combination"
    OLD_SPELLING = (
        "OLD_SPELLING",
        "an older spelling, accepted and rewritten; `noetl convert` rewrites the file",
    )
    OLD_FORM = "OLD_FORM", "an older form that has no equivalent"


class Finding(Struct, frozen=True):
    """`line` and `column` count from 1. They are 0 if the finding concerns the file as a whole."""

    file: str
    line: int
    column: int
    step: str | None
    code: Code
    message: str
    hint: str | None = None
    severity: Severity = "error"

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}"
        step = f" (step {self.step})" if self.step else ""
        return f"{place}: {self.severity} {self.code} {self.message}{step}"

    def to_dict(self) -> dict[str, str | int | None]:
        return {**asdict(self), "code": str(self.code)}


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings by position, each once. If there are too many, errors are kept first."""
    unique = list(dict.fromkeys(findings))
    if len(unique) > MAX_FINDINGS:
        unique.sort(key=_importance_key)
        unique = unique[:MAX_FINDINGS]
    return sorted(unique, key=_position_key)


def _importance_key(finding: Finding) -> tuple[int, int, int]:
    return _RANK[finding.severity], finding.line, finding.column


def _position_key(finding: Finding) -> tuple[int, int, Code, str]:
    return finding.line, finding.column, finding.code, finding.message
