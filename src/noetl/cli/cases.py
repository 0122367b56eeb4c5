"""Playbook tests: the model of their files, and the comparison of outcomes with expectations."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from noetl.cli.arguments import TEST_FILE_ENDINGS, read_text_file
from noetl.cli.payloads import parse_plain_yaml
from noetl.model.approvals import problem_with_approval
from noetl.model.errors import InvalidInput
from noetl.playbook import durations
from noetl.playbook import text as yaml

ANSWER_FIELDS = ("value", "rows", "data", "error")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StubError(_Model):
    """An error with the fields that templates see."""

    code: str = "ERROR"
    message: str = "as the test says"
    kind: str = "error"
    retryable: bool = False
    http_status: int | None = None
    sqlstate: str | None = None


class StubAnswer(_Model):
    """The answer of a tool: its `value`, `rows` of a query, `data` of an HTTP answer or an `error`."""

    value: Any = None
    rows: list[Any] = []
    data: Any = None
    status: int = 200  # the HTTP status of `data`
    error: StubError | None = None

    @property
    def answer_field(self) -> str | None:
        return next((name for name in ANSWER_FIELDS if name in self.model_fields_set), None)

    @model_validator(mode="after")
    def _check_single_answer(self) -> "StubAnswer":
        if len(self.model_fields_set.intersection(ANSWER_FIELDS)) > 1:
            raise ValueError(f"one of {', '.join(ANSWER_FIELDS)}")
        return self


class Stub(StubAnswer):
    """The answers of a step or task instead of its tool's: one for all, per call or per loop item."""

    calls: list[StubAnswer] = []
    items: dict[int, StubAnswer] = {}

    @model_validator(mode="after")
    def _check_has_answer(self) -> "Stub":
        if self.answer_field is None and not self.calls and not self.items:
            raise ValueError(f"says nothing: write one of {', '.join(ANSWER_FIELDS)}, calls, items")
        if self.answer_field is not None and self.calls:
            raise ValueError(f"either {self.answer_field} or calls")
        return self

    def find_answer(self, number: int, index: int | None) -> StubAnswer | None:
        """The answer to call `number` (from 0) for loop item `index`, or None if there is none."""
        if index is not None and index in self.items:
            return self.items[index]
        if number < len(self.calls):
            return self.calls[number]
        if self.calls or self.answer_field is None:
            return None
        return self


class CaseSignal(_Model):
    name: str
    payload: Any = None


class ExpectedError(_Model):
    """The expected error. `message` needs to be only a part of the real one."""

    step: str | None = None
    code: str | None = None
    message: str | None = None


class ExpectedOutcome(_Model):
    status: Literal["completed", "failed", "cancelled"] | None = None
    path: list[str] | None = None
    steps: dict[str, str] = {}
    result: Any = None
    values: dict[str, Any] = {}
    ctx: dict[str, Any] = {}
    state: dict[str, Any] = {}
    error: ExpectedError | None = None
    calls: dict[str, int | list[dict[str, Any]]] = {}


class CaseInputs(_Model):
    workload: dict[str, Any] = {}
    state: dict[str, Any] = {}  # the state that earlier executions of the playbook have kept
    stubs: dict[str, Stub] = {}
    signals: list[CaseSignal] = []
    approvals: dict[str, dict[str, Any]] = {}
    credentials: dict[str, dict[str, Any]] = {}
    # kinds of tools that are really called, beside those that need nothing outside the process
    real: list[str] = []

    @field_validator("approvals")
    @classmethod
    def _check_approvals(cls, approvals: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for step, payload in approvals.items():
            problem = problem_with_approval(payload)
            if problem is not None:
                raise ValueError(f"the approval of {step} neither approves nor rejects: {problem}")
        return approvals


class Case(CaseInputs):
    name: str
    timeout: str | int | float = "30s"
    expect: ExpectedOutcome


class Suite(CaseInputs):
    """A file of tests. The inputs beside `tests` apply to every test, which may override them."""

    apiVersion: Literal["noetl.io/v2"] = "noetl.io/v2"
    kind: Literal["PlaybookTest"]
    playbook: str
    with_: list[str] = Field(default=[], alias="with")
    tests: list[Case] = Field(min_length=1)

    def complete_case(self, case: Case) -> Case:
        """The test with the inputs of the whole file merged in."""
        merged: dict[str, Any] = {
            "signals": [*self.signals, *case.signals],
            "real": [*self.real, *case.real],
        }
        for name in ("workload", "state", "stubs", "approvals", "credentials"):
            merged[name] = {**getattr(self, name), **getattr(case, name)}
        return case.model_copy(update=merged)


def find_suites(paths: list[Path]) -> list[Path]:
    """The given files, and the files below given folders that are named as tests."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        below: list[Path] = []
        for ending in TEST_FILE_ENDINGS:
            below += path.rglob(f"*{ending}")
        files += sorted(below)
    if not files:
        raise InvalidInput(
            f"no tests in {', '.join(map(str, paths))}",
            hint=f"names of test files end with {TEST_FILE_ENDINGS[0]}",
        )
    return list(dict.fromkeys(files))


def load_suite(file: Path) -> Suite:
    text = read_text_file(file)
    try:
        suite = Suite.model_validate(parse_plain_yaml(text, str(file)))
        for case in suite.tests:
            durations.parse_micros(case.timeout)
    except ValidationError as error:
        hint = "docs/testing.md shows what a test says"
        raise InvalidInput(f"{file}{_describe_problem(text, error)}", hint=hint) from error
    except ValueError as error:
        raise InvalidInput(f"{file}: {error}") from error
    return suite


def _describe_problem(text: str, error: ValidationError) -> str:
    """The first problem with its place. Unknown keys come first: often a missing key is misspelt."""
    first = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    node, mark = yaml.read_document(text).data, yaml.START_MARK
    for part in first["loc"]:
        if isinstance(node, yaml.Map) and part in node.marks:
            mark, node = node.marks[part][0], node[part]
        elif isinstance(node, yaml.Seq) and isinstance(part, int) and part < len(node):
            mark, node = node.marks[part], node[part]
    message = "there is no such key" if first["type"] == "extra_forbidden" else first["msg"]
    place = ".".join(map(str, first["loc"])) or "document"
    return f":{mark.line}:{mark.column}: {place}: {message}"


# ---- comparing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """The facts of an execution that a test can expect."""

    status: str
    path: list[str]
    steps: dict[str, str]
    result: Any
    values: dict[str, Any]
    ctx: dict[str, Any]
    error: dict[str, Any] | None
    calls: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)  # after the execution


@dataclass(frozen=True, slots=True)
class CaseDifference:
    what: str
    expected: Any
    got: Any


MISSING_VALUE = "(nothing)"


def find_differences(expect: ExpectedOutcome, outcome: CaseOutcome) -> list[CaseDifference]:
    return [
        CaseDifference(what, expected, got)
        for what, expected, got in _list_comparisons(expect, outcome)
        if not _is_equal(expected, got)
    ]


def _list_comparisons(
    expect: ExpectedOutcome, outcome: CaseOutcome
) -> Iterator[tuple[str, Any, Any]]:
    """Every expected fact: its name, the expected value and the real one."""
    default_status = "failed" if expect.error is not None else "completed"
    yield "status", expect.status or default_status, outcome.status
    if expect.path is not None:
        yield "path", expect.path, outcome.path
    for step, status in expect.steps.items():
        yield f"steps.{step}", status, outcome.steps.get(step, "not run")
    if "result" in expect.model_fields_set:
        yield "result", expect.result, outcome.result
    for step, value in expect.values.items():
        yield f"values.{step}", value, outcome.values.get(step, MISSING_VALUE)
    for name, value in expect.ctx.items():
        yield f"ctx.{name}", value, outcome.ctx.get(name, MISSING_VALUE)
    for name, value in expect.state.items():
        yield f"state.{name}", value, outcome.state.get(name, MISSING_VALUE)
    if expect.error is not None:
        yield from _compare_error(expect.error, outcome.error or {})
    for place, expected in expect.calls.items():
        yield from _compare_calls(place, expected, outcome.calls.get(place, []))


def _compare_error(expect: ExpectedError, got: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    if expect.step is not None:
        yield "error.step", expect.step, got.get("step", MISSING_VALUE)
    if expect.code is not None:
        yield "error.code", expect.code, got.get("code", MISSING_VALUE)
    message = str(got.get("message", MISSING_VALUE))
    if expect.message is not None and expect.message not in message:
        yield "error.message", expect.message, message


def _compare_calls(
    place: str, wanted: int | list[dict[str, Any]], made: list[dict[str, Any]]
) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(wanted, int):
        yield f"calls.{place}", wanted, len(made)
        return
    yield f"calls.{place}", len(wanted), len(made)
    for number, (expected, call) in enumerate(zip(wanted, made, strict=False)):
        got = {name: call.get(name, MISSING_VALUE) for name in expected}
        yield f"calls.{place}[{number}]", expected, got


def _is_equal(expected: Any, got: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0, and true equals neither."""
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, dict) and isinstance(got, dict):
        if expected.keys() != got.keys():
            return False
        return all(_is_equal(value, got[name]) for name, value in expected.items())
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(_is_equal, expected, got))
    return bool(expected == got)
