"""`noetl run` on an embedded database, and what can be asked afterwards."""

import os
import signal
from pathlib import Path

import pytest

from tests.stack import NoetlCommand, write_playbook
from tests.waiting import until

SLOW = "  - step: slow\n    tool: {kind: python, code: 'import time; time.sleep(%s); result = 1'}\n    next: after\n"
AFTER = "  - step: after\n    tool: {kind: python, code: 'print(\"hi\"); result = 2'}\n"


def test_a_playbook_runs_from_nothing_to_its_end_and_is_remembered(noetl: NoetlCommand) -> None:
    said = noetl.json("run", "examples/hello.yaml", "--set", "name=Ada")
    assert list(said) == [
        "execution_id", "status", "recovered", "error", "result", "ctx", "state", "steps", "workload", "children", "cause"
    ]  # fmt: skip
    assert (said["status"], said["error"], said["result"]) == ("completed", None, "HELLO, ADA!")
    assert {name: (step["status"], step["runs"]) for name, step in said["steps"].items()} == {
        "greet": ("completed", 1),
        "shout": ("completed", 1),
    }
    assert said["workload"] == {"name": "Ada"}

    assert noetl.json("exec", "get", "@latest")["execution_id"] == said["execution_id"]
    assert noetl.json("exec", "list")[0]["status"] == "completed"
    lines = noetl("exec", "events", "@latest", "--json").out.splitlines()
    assert "playbook.initialized" in lines[0]
    assert "playbook.completed" in lines[-1]
    assert noetl.json("result", "show", said["execution_id"], "greet") == {"text": "Hello, Ada!"}
    told = noetl.json("exec", "explain", "@latest", "shout")
    assert told["verdict"] == "ran"
    (reached,) = [cause for cause in told["causes"] if cause["kind"] == "reached"]
    assert reached["from"] == ["greet"]
    assert noetl.json("catalog", "list")[0]["path"] == "examples/hello"
    assert {finding["status"] for finding in noetl.json("doctor")} == {"ok"}


COUNT_READS = """
import atexit, sys
from noetl.__main__ import main
from noetl.playbook import text

reads = []
read_document = text.read_document
text.read_document = lambda source: reads.append(source) or read_document(source)


def print_count():
    count = sum("workflow:" in source for source in reads)  # --set is YAML too
    print(f"read {count} times", file=sys.stderr)


atexit.register(print_count)
main()
"""


def test_a_run_reads_its_playbook_once(noetl: NoetlCommand) -> None:
    arguments = ["run", "examples/hello.yaml", "--set", "name=Ada"]
    process = noetl.start_python("-c", COUNT_READS, *arguments)
    done = noetl.wait(process)
    assert done.code == 0, done.err
    assert "read 1 times" in done.err


def test_a_path_of_the_catalog_runs_too_and_says_where_to_look(noetl: NoetlCommand) -> None:
    assert noetl("catalog", "register", "examples/hello.yaml").code == 0
    done = noetl("run", "examples/hello")
    assert done.code == 0, done.err
    assert "HELLO, WORLD!" in done.out
    execution_id = noetl.json("exec", "get", "@latest")["execution_id"]
    assert f"noetl exec get {execution_id}" in done.out


def test_the_first_causal_failure_is_told_and_a_retry_runs_the_rest(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    flag = tmp_path / "mended"
    code = f"import os; result = 7 if os.path.exists({str(flag)!r}) else 1 / 0"
    file = write_playbook(tmp_path, "breaks", AFTER.replace("step: after", "step: first") + "    next: bad\n"
                    f"  - step: bad\n    tool: {{kind: python, code: {code!r}}}\n")  # fmt: skip
    said = noetl.json("run", file, code=1)
    assert (said["status"], said["error"]["step"], said["result"]) == ("failed", "bad", None)
    assert "ZeroDivisionError" in said["error"]["message"]
    assert [line["line"] for line in [noetl.json("exec", "logs", "@latest")]] == ["hi"]
    flag.touch()
    again = noetl.json("exec", "retry", "@latest")
    assert (again["status"], again["result"]) == ("completed", 7)
    assert noetl.json("exec", "get", again["execution_id"])["retry_of"] == said["execution_id"]
    done = noetl("exec", "retry", "@latest")
    assert (done.code, "nothing is left to run" in done.err, "noetl exec rerun" in done.err) == (
        2,
        True,
        True,
    ), done.err


def test_long_work_is_not_waited_for_in_silence_where_nothing_is_drawn(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    done = noetl("run", write_playbook(tmp_path, "slow", SLOW % 4 + AFTER))
    assert done.code == 0, done.err
    latest = noetl.json("exec", "get", "@latest")["execution_id"]
    assert f"noetl exec get {latest} says how far" in done.err


def test_of_many_rows_the_first_are_shown(noetl: NoetlCommand, tmp_path: Path) -> None:
    query = "select i as id, 'n' || i as name from range(20000) t(i)"
    file = write_playbook(
        tmp_path, "many", f"  - step: many\n    tool: {{kind: duckdb, query: {query!r}}}\n"
    )
    said = noetl.json("run", file)["result"]
    assert (said["reference"]["rows"], said["preview"][:2]) == (
        20_000,
        [{"id": 0, "name": "n0"}, {"id": 1, "name": "n1"}],
    )
    assert f"… {20_000 - len(said['preview'])} more rows" in noetl("run", file).out


def test_two_runs_at_once_in_one_home_both_end(noetl: NoetlCommand, tmp_path: Path) -> None:
    """Whichever started the database ends first; the other goes on with it."""
    running = []
    for name in ("first", "second"):
        gate, begun = tmp_path / f"{name}.gate", tmp_path / f"{name}.begun"
        os.mkfifo(gate)
        code = f"open({str(begun)!r}, 'w').close(); open({str(gate)!r}).read(); result = 1"
        step = f"  - step: held\n    tool: {{kind: python, code: {code!r}}}\n    next: after\n"
        running.append(
            (gate, noetl.start("run", write_playbook(tmp_path, name, step + AFTER), "--json"))
        )
        until(begun.exists)
    for gate, process in running:
        gate.write_text("go on")
        done = noetl.wait(process)
        assert done.code == 0, done.err
        assert done.json["result"] == 2


def test_an_interrupt_cancels_the_execution(noetl: NoetlCommand, tmp_path: Path) -> None:
    running = noetl.start("run", write_playbook(tmp_path, "endless", SLOW % 60 + AFTER), "--watch")
    assert running.stdout is not None
    for line in running.stdout:
        if "command.issued" in line:
            break
    running.send_signal(signal.SIGINT)
    done = noetl.wait(running)
    assert done.code == 1
    assert "cancelled" in done.out
    assert noetl.json("exec", "get", "@latest")["status"] == "cancelled"


def test_versions_of_a_playbook_can_be_compared(noetl: NoetlCommand, tmp_path: Path) -> None:
    for number in (1, 2):
        file = write_playbook(tmp_path, "changing", SLOW % number + AFTER)
        assert noetl.json("catalog", "register", file)[0]["version"] == number
    assert (
        "+    tool: {kind: python, code: 'import time; time.sleep(2)"
        in noetl("catalog", "diff", "changing").out
    )
    assert "sleep(1)" in noetl("catalog", "get", "changing", "--version", "1").out


def test_rows_keep_their_types_from_one_database_to_another(noetl: NoetlCommand) -> None:
    for _ in range(2):
        said = noetl.json("run", "examples/rows.yaml")
        assert said["result"] == {
            "rows": 1000,
            "last": "2030-01-01T16:40:00+00:00",
            "lines": [
                f"customer {n}: {sum(g for g in range(1, 1001) if g % 7 == n) / 100}"
                for n in range(7)
            ],
            "copied": 7,
        }


def test_a_file_is_run_as_it_is_also_when_a_later_text_is_registered(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    step = "  - {{step: one, tool: {{kind: python, code: 'result = {}'}}}}\n"
    results = [
        noetl.json("run", write_playbook(tmp_path, "edited", step.format(n)))["result"]
        for n in (1, 2, 1)
    ]
    assert results == [1, 2, 1]


@pytest.mark.parametrize("how", [[], ["--memory"]])
def test_a_pool_of_the_playbooks_own_is_served(
    noetl: NoetlCommand, tmp_path: Path, how: list[str]
) -> None:
    step = "  - {step: one, spec: {pool: 'my-lab'}, tool: {kind: python, code: 'result = 7'}}\n"
    assert noetl.json("run", *how, write_playbook(tmp_path, "lab", step))["result"] == 7


def test_the_latest_execution_is_none_that_another_has_started(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    noetl.json(
        "catalog",
        "register",
        write_playbook(tmp_path, "beside", "  - step: one\n    tool: {kind: noop}\n"),
    )
    detaches = "  - step: go\n    tool: {kind: playbook, path: beside, wait: false}\n"
    said = noetl.json("run", write_playbook(tmp_path, "detaches", detaches))
    beside = noetl.json("exec", "get", said["result"]["execution_id"])
    assert (beside["parent"], beside["by"]) == (None, f"execution:{said['execution_id']}")
    assert noetl.json("exec", "list")[0]["execution_id"] == beside["execution_id"]
    assert noetl.json("exec", "get", "@latest")["execution_id"] == said["execution_id"]


STATEFUL = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: stateful, path: test/stateful}
workflow:
  - step: load
    tool: {kind: python, input: {n: "{{ state.watermark | default(0) }}"}, code: "result = n + 1"}
    set: {state.watermark: "{{ result }}"}
    next: [{step: done, set: {state.runs.last: 1}}]
  - step: done
"""


def test_a_dry_run_says_which_state_is_read_and_written(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    file = tmp_path / "stateful.yaml"
    file.write_text(STATEFUL)
    assert noetl("run", file).code == 0
    state = noetl.json("run", file, "--dry-run")["state"]
    assert state["writes"] == ["runs", "watermark"]
    assert (state["reads"], state["now"]) == (
        ["runs", "watermark"],
        {"runs": {"last": 1}, "watermark": 1},
    )
    shown = noetl("run", file, "--dry-run").out
    assert "state        reads watermark: 1" in shown
    assert "state        writes runs, watermark" in shown
    assert noetl.json("state", "get", "test/stateful", "watermark")["version"] == 1


def test_a_dry_run_names_credentials_and_children_that_are_not_there(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    steps = """\
  - {step: rows, tool: {kind: postgres, auth: nobodys, query: select 1}, next: here}
  - {step: here, tool: {kind: postgres, auth: local, query: select 1}, next: child}
  - {step: child, tool: {kind: playbook, path: no/such/child}}
"""
    file = write_playbook(tmp_path, "needs", steps)
    known = write_playbook(tmp_path, "known", "  - {step: a, tool: {kind: noop}}\n")
    noetl.json("run", known)  # so there is a database that knows
    assert noetl.json("run", file, "--dry-run")["missing"] == {
        "credentials": ["nobodys"],
        "playbooks": ["no/such/child"],
        "pools": [],
    }
    shown = noetl("run", file, "--dry-run").out
    assert "missing      credential nobodys: noetl credential add nobodys" in shown
    assert "missing      playbook no/such/child: register it before this one runs" in shown
