"""`noetl test` and `noetl run --dry-run`: what authors see of a playbook before it runs for real."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

from noetl.cli import main

ROOT = Path(__file__).parents[3]


class CliOutput(NamedTuple):
    code: int
    out: str
    err: str


Noetl = Callable[..., CliOutput]


@pytest.fixture
def noetl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Noetl:
    """The command, with an empty home: the database of the user is none of its business."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("NOETL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_COLOR", "1")

    def command(*arguments: str | Path) -> CliOutput:
        monkeypatch.setattr(sys, "argv", ["noetl", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return CliOutput(
            ended.value.code if isinstance(ended.value.code, int) else 0, *capsys.readouterr()
        )

    return command


STEPS = """
  - step: fetch
    tool:
      - first: {kind: http, url: "http://x/{{ workload.n }}", auth: token}
      - second: {kind: postgres, auth: db, query: "SELECT {{ workload.n }}"}
    set: {ctx.n: "{{ result.rows[0].n }}"}
    next: [{step: many, when: "{{ ctx.n > 1 }}"}]
  - step: many
    loop: {in: [1, 2, 3], iterator: i, spec: {mode: sequential}}
    tool: {kind: shell, cmds: ["echo {{ i }}"]}
"""


@pytest.fixture
def suite(tmp_path: Path) -> Callable[..., Path]:
    def write(*tests: dict[str, Any], steps: str = STEPS, **more: Any) -> Path:
        head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkload: {n: 1}\nworkflow:"
        (tmp_path / "p.yaml").write_text(head + steps)
        file = tmp_path / "p.test.yaml"
        file.write_text(
            json.dumps({"kind": "PlaybookTest", "playbook": "p.yaml", "tests": list(tests), **more})
        )
        return file

    return write


def case(name: str = "t", **fields: Any) -> dict[str, Any]:
    return {"name": name, "expect": {}, **fields}


STUBS = {"fetch.first": {"data": []}, "fetch.second": {"rows": [{"n": 5}]}, "many": {"value": "m"}}


def test_the_examples_pass(noetl: Noetl) -> None:
    said = noetl("test", "examples/tests")
    assert (said.code, said.out.splitlines()[-1]) == (0, "9 tests: 9 passed, 0 failed"), said.out


def test_tasks_are_stubbed_one_by_one_and_what_they_were_given_is_seen(
    noetl: Noetl, suite: Callable[..., Path]
) -> None:
    expect = {
        "path": ["fetch", "many"],
        "ctx": {"n": 5},
        "values": {"many": ["m", "m", "m"]},
        "calls": {
            "fetch.first": [{"url": "http://x/7"}],
            "fetch.second": [{"query": "SELECT 7"}],
            "many": [{"cmds": ["echo 1"]}, {"cmds": ["echo 2"]}, {"cmds": ["echo 3"]}],
        },
    }
    said = noetl("test", suite(case(workload={"n": 7}, stubs=STUBS, expect=expect)), "--json")
    assert (said.code, json.loads(said.out)["tests"][0]["differences"]) == (0, []), said.out


def test_what_differs_is_said_with_what_was_expected(
    noetl: Noetl, suite: Callable[..., Path], tmp_path: Path
) -> None:
    long = [{"name": f"row {number}"} for number in range(10)]
    expect = {
        "path": ["fetch"],
        "ctx": {"n": 6, "m": 1},
        "steps": {"many": "not run"},
        "calls": {"many": 2},
    }
    file = suite(
        case("wrong", stubs=STUBS, expect=expect),
        case("fails", stubs={**STUBS, "many": {"error": {"code": "OUCH", "message": "it hurts"}}}),
        case(
            "long",
            stubs={**STUBS, "many": {"value": long}},
            expect={"values": {"many": [long, long[1:], long]}},
        ),
    )
    said = noetl("test", file, "--junit", tmp_path / "report.xml")
    assert said.code == 1
    for line in (
        'path: expected ["fetch"], got ["fetch", "many"]',
        "ctx.n: expected 6, got 5",
        'ctx.m: expected 1, got "(nothing)"',
        'steps.many: expected "not run", got "completed"',
        "calls.many: expected 2, got 3",
        'status: expected "completed", got "failed"',
        "values.many: - expected, + got",
        '  +      "name": "row 0"',
        "3 tests: 0 passed, 3 failed",
    ):
        assert line in said.out, line
    report = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert (report.get("tests"), report.get("failures")) == ("3", "3")
    assert [each.get("name") for each in report.iter("testcase")] == ["wrong", "fails", "long"]
    assert "path: expected" in (report.find(".//failure").get("message") or "")  # type: ignore[union-attr]


def test_a_call_that_nothing_is_said_of_fails_the_test_and_calls_nobody(
    noetl: Noetl, suite: Callable[..., Path]
) -> None:
    once = {"fetch": {"calls": [{"value": {"rows": [{"n": 2}]}}]}}
    said = noetl(
        "test", suite(case("bare"), case("once", stubs={**once, "many": {"calls": [{"value": 1}]}}))
    )
    assert said.code == 1
    assert "fetch calls http, and no stub says what it gives: add stubs.fetch" in said.out
    cycle = """
  - step: a
    tool: {kind: http, url: "http://x"}
    set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}
    next: [{step: b, when: "{{ ctx.n < 3 }}"}]
  - {step: b, next: a}
"""
    said = noetl("test", suite(case(stubs={"a": {"calls": [{"value": 1}]}}), steps=cycle))
    assert "its stub says nothing of call 2" in said.out
    assert (
        noetl("test", suite(case(stubs={"a": {"calls": [{"value": 1}] * 3}}), steps=cycle)).code
        == 0
    )


WAITS = """
  - {step: gate, tool: {kind: wait, signal: go}, set: {ctx.by: "{{ gate.by }}"}, next: nap}
  - {step: nap, tool: {kind: wait, duration: 3d}, next: again}
  - step: again
    spec: {pool: far}
    tool:
      kind: http
      url: "http://x"
      spec: {policy: {rules: [{when: "{{ error is defined }}", then: {do: retry, attempts: 5, delay: 1h}}]}}
"""


def test_no_time_passes_and_a_signal_is_one_that_is_given(
    noetl: Noetl, suite: Callable[..., Path]
) -> None:
    tries = {"again": {"calls": [{"error": {}}] * 4 + [{"data": 1}]}}
    good = case(
        signals=[{"name": "go", "payload": {"by": "ada"}}],
        stubs=tries,
        expect={"ctx": {"by": "ada"}, "calls": {"again": 5}},
    )
    said = noetl("test", suite(good, case("none", stubs=tries), steps=WAITS))
    assert "gate waits for the signal go, and the test gives none" in said.out
    assert said.out.splitlines()[-1] == "2 tests: 1 passed, 1 failed"


def test_a_child_runs_with_the_stubs_of_its_parent(
    noetl: Noetl, suite: Callable[..., Path], tmp_path: Path
) -> None:
    child = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: child}\nworkflow:\n"
    (tmp_path / "child.yaml").write_text(
        child + "  - {step: inner, tool: {kind: http, url: 'http://x'}}\n"
    )
    steps = "\n  - {step: call, tool: {kind: playbook, path: child}}\n"
    file = suite(
        case(stubs={"inner": {"value": 3}}, expect={"result": 3}),
        steps=steps,
        **{"with": ["child.yaml"]},
    )
    assert noetl("test", file).code == 0


def test_a_test_that_does_not_end_has_failed(noetl: Noetl, suite: Callable[..., Path]) -> None:
    steps = "\n  - {step: a, tool: {kind: python, code: 'import time\\nwhile True: time.sleep(1)'}}\n".replace(
        "'", '"'
    )
    said = noetl("test", suite(case(timeout="300ms"), steps=steps))
    assert (said.code, "it did not end within 300ms" in said.out, said.err) == (1, True, "")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stubs": {"fetsh": {"value": 1}}}, "no step 'fetsh'"),
        ({"expect": {"pth": []}}, "tests.0.expect.pth"),
        ({"stubs": {"fetch": {}}}, "says nothing"),
        ({"stubs": {"fetch": {"value": 1, "rows": []}}}, "one of value, rows, data, error"),
        ({"timeout": "soon"}, "not a duration"),
    ],
)
def test_a_test_that_says_something_wrong_is_refused(
    fields: dict[str, Any], words: str, noetl: Noetl, suite: Callable[..., Path]
) -> None:
    said = noetl("test", suite(case(**fields)))
    assert (said.code, said.out) == (2, "")
    assert words in said.err


def test_a_misspelt_key_is_named_with_its_place(noetl: Noetl, tmp_path: Path) -> None:
    file = tmp_path / "a.test.yaml"
    file.write_text(
        "kind: PlaybookTest\nplaybook: a.yaml\ntests:\n  - name: one\n    expct: {path: []}\n"
    )
    said = noetl("test", file)
    assert (said.code, said.out) == (2, "")
    assert f"{file}:5:5: tests.0.expct: there is no such key" in said.err


def test_a_folder_without_tests_and_a_playbook_with_errors_are_refused(
    noetl: Noetl, suite: Callable[..., Path], tmp_path: Path
) -> None:
    said = noetl("test", tmp_path)
    assert (said.code, "no tests in" in said.err) == (2, True)
    assert noetl("test", suite(case(), steps="\n  - {step: a, nxt: b}\n")).code == 2


def test_tests_are_no_playbooks(noetl: Noetl, suite: Callable[..., Path], tmp_path: Path) -> None:
    suite(case())
    said = noetl("validate", tmp_path)
    assert (said.code, said.err.startswith("1 file:")) == (0, True), said.out


# ---- dry run -----------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_done_and_needed_and_does_nothing(
    noetl: Noetl, suite: Callable[..., Path]
) -> None:
    file = suite(case()).with_name("p.yaml")
    plan = json.loads(noetl("run", file, "--dry-run", "--set", "n=9", "--json").out)
    assert (plan["path"], plan["workload"], plan["entry"]) == ("p", {"n": 9}, "fetch")
    assert plan["uses"] == {
        "tools": ["http", "postgres", "shell"], "pools": ["cpu"], "credentials": ["db", "token"], "playbooks": [],
    }  # fmt: skip
    assert plan["steps"][1]["loop"] == {
        "in": [1, 2, 3],
        "iterator": "i",
        "mode": "sequential",
        "max_in_flight": None,
    }
    assert plan["steps"][0]["next"] == [{"step": "many", "when": "{{ ctx.n > 1 }}"}]
    shown = noetl("run", file, "--dry-run").out
    for line in (
        "workload     n: 1",
        "fetch        http (as token) → postgres (as db)",
        "for each i in [1, 2, 3]",
        "nothing was run",
    ):
        assert line in shown, shown


def test_a_dry_run_names_secrets_that_are_asked_for(
    noetl: Noetl, suite: Callable[..., Path]
) -> None:
    file = suite(
        case(), steps="\n  - {step: fetch, tool: {kind: secrets, name: vault}}\n"
    ).with_name("p.yaml")
    assert json.loads(noetl("run", file, "--dry-run", "--json").out)["uses"]["credentials"] == [
        "vault"
    ]


def test_a_dry_run_of_a_playbook_with_errors_says_them(
    noetl: Noetl, suite: Callable[..., Path]
) -> None:
    file = suite(case(), steps="\n  - {step: a, nxt: b}\n").with_name("p.yaml")
    said = noetl("run", file, "--dry-run")
    assert (said.code, "UNKNOWN_KEY" in said.err) == (2, True)


SPARK_STEPS = """
  - step: totals
    spec: {timeout: 1h}
    tool:
      kind: spark
      spec: {profile: "sc://spark:15002"}
      inputs:
        orders: "{{ workload.n }}"
        users: {path: /lake/users, format: parquet}
        rates: {kind: postgres, auth: pg_rates, query: "select 1"}
      sql: select 1 as n, 'a' as day
      output: {path: /lake/totals, mode: overwrite_partitions, partition_by: [day]}
    next: store
  - step: store
    tool: {kind: spark, sql: select 1 as id, output: {kind: postgres, auth: pg_out, table: t, mode: upsert, key: [id]}}
    next: each
  - step: each
    loop: {in: [1], iterator: i, spec: {policy: {exec: spark}}}
    tool: {kind: noop}
"""


def test_a_dry_run_says_what_spark_reads_and_writes(
    noetl: Noetl, suite: Callable[..., Path]
) -> None:
    file = suite(case(), steps=SPARK_STEPS).with_name("p.yaml")
    plan = json.loads(noetl("run", file, "--dry-run", "--json").out)
    assert plan["uses"]["credentials"] == ["pg_out", "pg_rates"]
    assert plan["uses"]["pools"] == ["spark"]
    assert plan["steps"][0]["tasks"][0]["spark"] == {
        "profile": "sc://spark:15002",
        "inputs": {
            "orders": "{{ workload.n }}",
            "users": "/lake/users",
            "rates": "postgres (a query)",
        },
        "output": {
            "to": "/lake/totals",
            "mode": "overwrite_partitions",
            "partition_by": ["day"],
            "key": [],
        },
        "expect": [],
    }
    shown = noetl("run", file, "--dry-run").out
    for line in (
        "reads users: /lake/users",
        "writes /lake/totals (overwrite_partitions, partitions by day)",
        "on the Spark of profile sc://spark:15002",
        "writes postgres table t (upsert, key id)",
        "for each i in [1], sequential, on Spark",
    ):
        assert line in shown, shown


COUNTS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: counts, path: counts}
workflow:
  - step: count
    tool: {kind: noop}
    set: {state.n: "{{ state.n | default(0) + 1 }}"}
"""


def test_a_test_gives_state_and_looks_at_it_afterwards(noetl: Noetl, tmp_path: Path) -> None:
    (tmp_path / "counts.yaml").write_text(COUNTS)
    cases = [
        case("first", expect={"state": {"n": 1}}),
        case("later", state={"n": 41}, expect={"state": {"n": 42}}),
        case("wrong", state={"n": 1}, expect={"state": {"n": 1, "m": 1}}),
        case("refused", state={"n": [{"row": 1}]}),
    ]
    file = tmp_path / "counts.test.yaml"
    file.write_text(json.dumps({"kind": "PlaybookTest", "playbook": "counts.yaml", "tests": cases}))
    said = noetl("test", file, "--json")
    told = json.loads(said.out)["tests"]
    assert [test["passed"] for test in told] == [True, True, False, False]
    assert [each["what"] for each in told[2]["differences"]] == ["state.n", "state.m"]
    assert "scalar" in json.dumps(told[3])
