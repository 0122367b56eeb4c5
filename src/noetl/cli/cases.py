"""Tests that authors write for playbooks: the file they stand in, and how what happened differs from what was expected."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from noetl.cli.catalog import TESTS
from noetl.cli.run import plain, read
from noetl.model.approvals import problem_with_approval
from noetl.model.errors import InvalidInput
from noetl.playbook import durations
from noetl.playbook import text as yaml

ANSWERS = ("value", "rows", "data", "error")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Error(_Model):
    """As templates see it."""

    code: str = "ERROR"
    message: str = "as the test says"
    kind: str = "error"
    retryable: bool = False
    http_status: int | None = None
    sqlstate: str | None = None


class StubAnswer(_Model):
    """One of: `value`, whatever the tool would give; `rows` of a query; `data` of an HTTP answer; `error`."""

    value: Any = None
    rows: list[Any] = []
    data: Any = None
    status: int = 200  # of `data`
    error: Error | None = None

    @property
    def given(self) -> str | None:
        return next((name for name in ANSWERS if name in self.model_fields_set), None)

    @model_validator(mode="after")
    def _one(self) -> "StubAnswer":
        if len(self.model_fields_set.intersection(ANSWERS)) > 1:
            raise ValueError(f"one of {', '.join(ANSWERS)}")
        return self


class Stub(StubAnswer):
    """What a step or task gives instead of calling its tool: always the same, one answer per call, or by the item of a loop."""

    calls: list[StubAnswer] = []
    items: dict[int, StubAnswer] = {}

    @model_validator(mode="after")
    def _something(self) -> "Stub":
        if self.given is None and not self.calls and not self.items:
            raise ValueError(f"says nothing: write one of {', '.join(ANSWERS)}, calls, items")
        if self.given is not None and self.calls:
            raise ValueError(f"either {self.given} or calls")
        return self

    def answer(self, number: int, index: int | None) -> StubAnswer | None:
        """To call `number` (from 0) for this item; None: nothing is said of it."""
        if index is not None and index in self.items:
            return self.items[index]
        if self.calls:
            return self.calls[number] if number < len(self.calls) else None
        return self if self.given is not None else None


class CaseSignal(_Model):
    name: str
    payload: Any = None


class ExpectedError(_Model):
    """`message` is a part of it."""

    step: str | None = None
    code: str | None = None
    message: str | None = None


class Expected(_Model):
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
    state: dict[str, Any] = {}  # what executions before this one have kept, for its own playbook
    stubs: dict[str, Stub] = {}
    signals: list[CaseSignal] = []
    approvals: dict[str, dict[str, Any]] = {}
    credentials: dict[str, dict[str, Any]] = {}
    real: list[
        str
    ] = []  # kinds that are called as they are, beside those that need nothing outside

    @field_validator("approvals")
    @classmethod
    def _check_approvals(cls, approvals: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for step, payload in approvals.items():
            if (problem := problem_with_approval(payload)) is not None:
                raise ValueError(f"the approval of {step} neither approves nor rejects: {problem}")
        return approvals


class Case(CaseInputs):
    name: str
    timeout: str | int | float = "30s"
    expect: Expected


class Suite(CaseInputs):
    """A file of tests. What stands beside `tests` holds for each of them, its own words over it."""

    apiVersion: Literal["noetl.io/v2"] = "noetl.io/v2"
    kind: Literal["PlaybookTest"]
    playbook: str
    with_: list[str] = Field(default=[], alias="with")
    tests: list[Case] = Field(min_length=1)

    def complete(self, case: Case) -> Case:
        """With what holds for all."""
        merged = {
            name: {**getattr(self, name), **getattr(case, name)}
            for name in ("workload", "state", "stubs", "approvals", "credentials")
        }
        return case.model_copy(
            update={
                **merged,
                "signals": [*self.signals, *case.signals],
                "real": [*self.real, *case.real],
            }
        )


def suites_in(paths: list[Path]) -> list[Path]:
    """The files themselves, and below folders those whose name says so."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(file for name in TESTS for file in path.rglob(f"*{name}"))
        else:
            found.append(path)
    if not found:
        raise InvalidInput(
            f"no tests in {', '.join(map(str, paths))}",
            hint=f"files whose names end with {TESTS[0]}",
        )
    return list(dict.fromkeys(found))


def load_suite(file: Path) -> Suite:
    text = read(file)
    try:
        suite = Suite.model_validate(plain(text, str(file)))
        for case in suite.tests:
            durations.micros(case.timeout)
    except ValidationError as error:
        hint = "docs/testing.md shows what a test says"
        raise InvalidInput(f"{file}{_problem(text, error)}", hint=hint) from error
    except ValueError as error:
        raise InvalidInput(f"{file}: {error}") from error
    return suite


def _problem(text: str, error: ValidationError) -> str:
    """The first one, with its place. What nobody knows comes before what is missing: mostly that is its name, misspelt."""
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    node, mark = yaml.read(text).data, yaml.START
    for part in first["loc"]:
        if isinstance(node, yaml.Map) and part in node.marks:
            mark, node = node.marks[part][0], node[part]
        elif isinstance(node, yaml.Seq) and isinstance(part, int) and part < len(node):
            mark, node = node.marks[part], node[part]
    said = "there is no such key" if first["type"] == "extra_forbidden" else first["msg"]
    return f":{mark.line}:{mark.column}: {'.'.join(map(str, first['loc'])) or 'document'}: {said}"


# ---- comparing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """What happened."""

    status: str
    path: list[str]
    steps: dict[str, str]
    result: Any
    values: dict[str, Any]
    ctx: dict[str, Any]
    error: dict[str, Any] | None
    calls: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)  # as it is after the execution


@dataclass(frozen=True, slots=True)
class CaseDifference:
    what: str
    expected: Any
    got: Any


MISSING = "(nothing)"


def differences(expect: Expected, ran: CaseOutcome) -> list[CaseDifference]:
    return [
        CaseDifference(what, expected, got)
        for what, expected, got in _compared(expect, ran)
        if not _equal(expected, got)
    ]


def _compared(expect: Expected, ran: CaseOutcome) -> Iterator[tuple[str, Any, Any]]:
    failed = "failed" if expect.error is not None else "completed"
    yield "status", expect.status or failed, ran.status
    if expect.path is not None:
        yield "path", expect.path, ran.path
    for step, status in expect.steps.items():
        yield f"steps.{step}", status, ran.steps.get(step, "not run")
    if "result" in expect.model_fields_set:
        yield "result", expect.result, ran.result
    for step, value in expect.values.items():
        yield f"values.{step}", value, ran.values.get(step, MISSING)
    for name, value in expect.ctx.items():
        yield f"ctx.{name}", value, ran.ctx.get(name, MISSING)
    for name, value in expect.state.items():
        yield f"state.{name}", value, ran.state.get(name, MISSING)
    if expect.error is not None:
        yield from _of_error(expect.error, ran.error or {})
    for place, wanted in expect.calls.items():
        yield from _of_calls(place, wanted, ran.calls.get(place, []))


def _of_error(expect: ExpectedError, got: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in ("step", "code"):
        if (wanted := getattr(expect, name)) is not None:
            yield f"error.{name}", wanted, got.get(name, MISSING)
    if expect.message is not None and expect.message not in (
        message := str(got.get("message", MISSING))
    ):
        yield "error.message", expect.message, message


def _of_calls(
    place: str, wanted: int | list[dict[str, Any]], made: list[dict[str, Any]]
) -> Iterator[tuple[str, Any, Any]]:
    yield f"calls.{place}", wanted if isinstance(wanted, int) else len(wanted), len(made)
    if isinstance(wanted, int):
        return
    for number, (expected, call) in enumerate(zip(wanted, made, strict=False)):
        yield (
            f"calls.{place}[{number}]",
            expected,
            {name: call.get(name, MISSING) for name in expected},
        )


def _equal(expected: Any, got: Any) -> bool:
    """As JSON has it: 1 is 1.0, and true is neither."""
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, dict) and isinstance(got, dict):
        return expected.keys() == got.keys() and all(
            _equal(value, got[name]) for name, value in expected.items()
        )
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(_equal, expected, got))
    return bool(expected == got)
