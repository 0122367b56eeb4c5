"""25 secrets in various shapes go through every tool, its failures and its cuts; then everything that is left is searched.

The long version takes them through Spark too.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from noetl.embedded import EmbeddedPostgres
from tests.integration.cli.canaries import (
    ALL,
    CANARIES,
    FIELDS,
    KEYCHAIN,
    LOOP,
    ONE,
    OUTCOMES,
    EchoServer,
    decode_layers,
    dump_database,
    find_canaries,
    link_steps,
    list_needles,
    make_steps,
    read_processes,
)
from tests.stack import ROOT, NoetlCommand, Stack, run_stack
from tests.waiting import HANG_LIMIT_S, until

OPENAPI = ROOT / "tests/unit/server/openapi.json"
# These wait for what comes next, for ever.
ENDLESS_ROUTES = frozenset(("/api/executions/stream",))
SPARK_CODE = """
from pyspark.sql import functions as F
@F.udf("string")
def fail(value):
    print("printed", value)
    raise ValueError(f"raised {value}")
result = spark.createDataFrame([(v,) for v in all.values()], ["x"]).select(fail("x").alias("y"))
"""
SPARK_STEPS = [
    {
        "step": "spark_rows",
        "tool": {
            "kind": "spark",
            "sql": "SELECT {{ keychain.canaries.f00 }} AS a, {{ keychain.canaries.f05 }} AS b, {{ keychain.canaries.f11 }} AS n",
        },
    },
    {
        "step": "spark_casts",
        "fails": True,
        "tool": {"kind": "spark", "sql": "SELECT cast({{ keychain.canaries.f00 }} AS int) AS x"},
    },
    {
        "step": "spark_asserts",
        "fails": True,
        "tool": {
            "kind": "spark",
            "sql": "SELECT assert_true({{ keychain.canaries.f07 }} = 'x', concat('no ', {{ keychain.canaries.f14 }})) AS x",
        },
    },
    {
        "step": "spark_code",
        "fails": True,
        "tool": {"kind": "spark", "code": SPARK_CODE, "input": {"all": ALL}},
    },
    {
        "step": "spark_expects",
        "fails": True,
        "tool": {
            "kind": "spark",
            "sql": "SELECT {{ keychain.canaries.f01 }} AS a",
            "expect": [{"name": "none", "sql": "a = 'x'"}],
        },
    },
    {
        "step": "spark_login",
        "fails": True,
        "tool": {
            "kind": "spark",
            "sql": "SELECT 1 AS a FROM t",
            "inputs": {"t": {"kind": "postgres", "auth": "database", "query": "SELECT 1"}},
        },
    },
    {
        "step": "spark_loop",
        "loop": {
            **LOOP,
            "spec": {"mode": "parallel", "policy": {"exec": "spark", "failure": "best_effort"}},
        },
        "tool": {
            "kind": "python",
            "input": {"v": ONE, "n": "{{ n }}"},
            "code": "print(v)\nif n > 'f12':\n    raise ValueError(v)\nresult = v",
        },
    },
]

SPARK_OUTCOMES = {
    "spark_rows": {"ok"},
    "spark_casts": {"SPARK_ERROR"},
    "spark_asserts": {"SPARK_ERROR"},
    "spark_code": {"PYTHON_ERROR"},
    "spark_expects": {"EXPECTATION_FAILED"},
    "spark_login": {"CONNECTION_FAILED"},
    "spark_loop": {"ok", "PYTHON_ERROR"},
}


def test_canaries_are_of_many_shapes_and_can_be_found() -> None:
    assert len(set(CANARIES)) == 25
    for canary in CANARIES:
        assert find_canaries("here", canary.encode()), canary
        assert find_canaries("here", canary.encode().hex().encode()), canary
    assert len(list_needles()) > 10


def test_no_canary_is_in_anything_that_an_execution_leaves(tmp_path: Path) -> None:
    check_run(NoetlCommand(tmp_path / "home"), tmp_path, [])


@pytest.mark.long
def test_no_canary_is_in_anything_that_spark_leaves(tmp_path: Path) -> None:
    check_run(NoetlCommand(tmp_path / "home"), tmp_path, SPARK_STEPS)


def check_run(noetl: NoetlCommand, folder: Path, more: list[dict[str, Any]]) -> None:
    flag = folder / "flag"
    loud = noetl.with_env(NOETL_LOG_LEVEL="debug")
    embedded = EmbeddedPostgres(noetl.home)
    dsns = embedded.ensure_postgres()
    hits: list[str] = []
    try:
        with EchoServer() as address, run_stack(loud, workers=1) as stack:
            steps = link_steps([*more, *make_steps(address, flag)])
            file = folder / "canaries.yaml"
            file.write_text(write_document(steps))
            stored = stack.client.run_with_input(
                json.dumps(FIELDS),
                "credential",
                "add",
                "canaries",
                "--kind",
                "generic",
                "--file",
                "-",
            )
            assert stored.code == 0, stored.err
            running = stack.client.start("run", file, "--json")
            begun = Path(f"{flag}.begun")
            until(lambda: begun.exists() or running.poll() is not None, within=6 * HANG_LIMIT_S)
            assert begun.exists(), stack.client.wait(running)
            ours = {each.pid for each in stack.processes.values()} | {os.getpid()}
            for place, content in read_processes(ours):
                hits += find_canaries(place, content)
            flag.touch()
            said = stack.client.wait(running)
            execution_id = said.json["execution_id"]
            answers = dict(ask_everything(stack, execution_id, [step["step"] for step in steps]))
            shown = stack.client("exec", "show", execution_id)
            printed = stack.client("exec", "logs", execution_id)
        answers |= {
            "run": said.out + said.err,
            "show": shown.out + shown.err,
            "logs": printed.out + printed.err,
        }
        assert said.json["status"] == "completed", said.json
        outcomes = {
            step["step"]: find_outcome(answers, execution_id, step["step"]) for step in steps
        }
        expected = {**OUTCOMES, **(SPARK_OUTCOMES if more else {})}
        assert {name: codes for name, codes in outcomes.items() if codes != expected[name]} == {}
        for place, text in answers.items():
            hits += find_canaries(place, text.encode("utf-8", "surrogatepass"))
        for process in stack.processes.values():
            hits += find_canaries(f"log of {process.name}", process.read_log().encode())
        for table, content in dump_database(dsns.control):
            hits += find_canaries(f"table {table}", content)
    finally:
        embedded.stop_postgres()
    for file in noetl.home.rglob("*"):
        if file.is_file():
            for layer in decode_layers(file.read_bytes()):
                hits += find_canaries(str(file.relative_to(noetl.home)), layer)
    assert hits == []
    # They were there, and were removed.
    everything = "".join(answers.values())
    for name in FIELDS:
        assert f"***canaries.{name}***" in everything, name


def find_outcome(answers: dict[str, str], execution_id: str, step: str) -> set[str]:
    """How the step, or the items of a loop, ended: the codes of errors, or `ok`."""
    place = f"/api/executions/{execution_id}/steps/{step}"
    (run,) = json.loads(answers[f"{place}/runs"])["runs"]
    if run["stats"] is None:
        return {run["error"]["code"] if run["error"] else "ok"}
    failed = json.loads(answers[f"{place}/items"])["items"]
    codes = {item["error"]["code"] for item in failed if item["error"]}
    return codes | {"ok"} if run["stats"]["ok"] else codes


def write_document(steps: list[dict[str, Any]]) -> str:
    document = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "canaries", "path": "tests/canaries"},
        "keychain": KEYCHAIN,
        "workflow": steps,
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def ask_everything(stack: Stack, execution_id: str, steps: list[str]) -> Iterator[tuple[str, str]]:
    """The answers of every GET route, for the execution and each of its steps."""
    routes = json.loads(OPENAPI.read_text())["paths"]
    http = httpx.Client(
        base_url=stack.url,
        headers=stack.command.token_header,
        trust_env=False,
        verify=False,
        timeout=HANG_LIMIT_S,
    )
    for route, methods in routes.items():
        if "get" not in methods or route in ENDLESS_ROUTES:
            continue
        path = route.replace("{execution_id}", execution_id).replace("{path}", "tests/canaries")
        for step in steps if "{step}" in path else [""]:
            named = path.replace("{step}", step)
            if "{" in named:
                continue
            query = "?first=0" if named.endswith("/times") else ""
            yield named, http.get(named + query).text
