"""`noetl exec retry` of many, with another version, and `rerun` from a step, as a person would type them."""

import os
import pty
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stack import NoetlCommand
from tests.stack.forking import RunningCommand

FIRST = "  - step: first\n    tool: {kind: python, code: 'result = 1'}\n    next: bad\n"
CHECK = "tool: {kind: python, input: {n: '{{ workload.n }}'}, code: 'assert n > 5; result = n'}"
BAD = f"  - step: bad\n    {CHECK}\n    next: last\n"
LAST = "  - step: last\n    tool: {kind: python, input: {n: '{{ bad }}'}, code: 'result = n + 1'}\n"


def playbook(folder: Path, path: str, steps: str) -> Path:
    file = folder / f"{path.replace('/', '_')}.yaml"
    head = f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: test, path: {path}}}\nworkload: {{n: 1}}\n"
    file.write_text(f"{head}workflow:\n{steps}")
    return file


def test_a_retry_says_what_it_will_do_and_takes_overrides_and_versions(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    file = playbook(tmp_path, "etl/one", FIRST + BAD + LAST)
    failed = noetl.json("run", file, code=1)["execution_id"]
    planned = noetl.json("exec", "retry", failed, "--set", "n=6", "--dry-run")
    assert (planned["inherited"], planned["begins"], planned["again"]) == (
        ["first"],
        ["bad"],
        ["bad", "last"],
    )
    assert planned["workload_changes"] == {"n": {"before": 1, "after": 6}}
    assert len(noetl.json("exec", "list")) == 1
    shown = noetl("exec", "retry", failed, "--set", "n=6")
    assert shown.code == 0, shown
    assert "takes over    first" in shown.out
    assert "n: 1 becomes 6" in shown.out
    assert noetl.json("exec", "get", "@latest")["workload"] == {"n": 6}
    assert f"retry of   {failed}" in noetl("exec", "get", "@latest").out
    new = noetl("exec", "retry", failed, "--set", "day=monday", "--dry-run").out
    assert "day is set to 'monday'" in new
    assert "None" not in new

    playbook(tmp_path, "etl/one", FIRST + BAD.replace("n > 5", "n > 0") + LAST)
    assert noetl("catalog", "register", file).code == 0
    again = noetl.json("exec", "retry", failed, "--version", "latest")
    assert (again["status"], again["result"]) == ("completed", 2)
    assert noetl.json("exec", "get", "@latest")["version"] == 2
    rerun = noetl.json("exec", "rerun", "@latest", "--from", "last")
    assert {name: step["status"] for name, step in rerun["steps"].items()} == {
        "first": "inherited", "bad": "inherited", "last": "completed"
    }  # fmt: skip

    playbook(tmp_path, "etl/one", BAD + LAST)
    assert noetl("catalog", "register", file).code == 0
    refused = noetl("exec", "retry", failed, "--version", "3")
    assert refused.code == 2, refused
    assert "it has no step 'first', so the result of that step cannot be reused" in refused.err
    unknown = noetl("exec", "rerun", "@latest", "--from", "nowhere")
    assert unknown.code == 2, unknown
    assert "no step 'nowhere'" in unknown.err


def test_many_that_failed_are_retried_once(noetl: NoetlCommand, tmp_path: Path) -> None:
    failed = [
        noetl.json("run", playbook(tmp_path, path, FIRST + BAD + LAST), code=1)["execution_id"]
        for path in ("etl/a", "etl/b", "other")
    ]
    many = ("exec", "retry", "--failed", "--since", "1d", "--path", "etl/*")
    planned = noetl.json(*many, "--dry-run")
    assert [(row["execution_id"], row["retried_by"]) for row in planned] == [
        (failed[0], None),
        (failed[1], None),
    ]
    done = noetl.json(*many, "--set", "n=7", "--yes")
    assert [row["status"] for row in done] == ["completed", "completed"]
    assert noetl.json("exec", "get", done[0]["retried_by"])["retry_of"] == failed[0]
    assert noetl.json(*many, "--yes") == []
    assert noetl("exec", "retry", failed[2], "--failed").code == 2


OVERWRITES = """
  - step: first
    tool: {kind: python, code: 'result = 1'}
    set: {ctx.n: 1}
    next: {arcs: [{step: middle, args: {a: "{{ ctx.n }}"}}]}
  - step: middle
    tool: {kind: python, input: {n: '{{ ctx.n }}', a: '{{ args.a }}'}, code: 'result = n + a'}
    set: {ctx.n: "{{ ctx.n + 10 }}"}
    next: last
  - step: last
    tool: {kind: python, input: {n: '{{ ctx.n }}', m: '{{ middle }}'}, code: 'result = n * 100 + m'}
    set: {ctx.n: 0}
"""


def test_rerun_from_the_middle_gives_the_same_result_as_the_first_time(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    first = noetl.json("run", playbook(tmp_path, "etl/over", OVERWRITES))
    assert first["result"] == 1102
    planned = noetl.json("exec", "rerun", first["execution_id"], "--from", "middle", "--dry-run")
    assert (planned["inherited"], planned["begins"], planned["entered"]["run"]) == (
        ["first"],
        ["middle"],
        1,
    )
    shown = noetl("exec", "rerun", first["execution_id"], "--from", "middle", "--dry-run")
    assert "when middle was entered for its only run" in shown.out
    again = noetl.json("exec", "rerun", first["execution_id"], "--from", "middle")
    assert (again["status"], again["result"]) == ("completed", 1102)
    told = noetl("exec", "get", again["execution_id"]).out
    assert f"rerun of   {first['execution_id']} from step middle" in told
    assert "retry of" not in told
    inherited = noetl("exec", "rerun", again["execution_id"], "--from", "first")
    assert inherited.code == 2, inherited
    assert f"rerun execution {first['execution_id']} from this step" in inherited.err


@contextmanager
def start_at_terminal(
    noetl: NoetlCommand, *arguments: object
) -> Iterator[tuple[RunningCommand, int]]:
    """Start the command with a terminal as its standard input. Yields it and our end of the terminal."""
    ours, theirs = pty.openpty()
    try:
        yield noetl.start(*arguments, stdin=theirs), ours
    finally:
        os.close(ours)
        os.close(theirs)


def answer_at_terminal(noetl: NoetlCommand, answer: str, *arguments: object) -> tuple[int, str]:
    """Run the command at a terminal, and type this answer."""
    with start_at_terminal(noetl, *arguments) as (process, terminal):
        os.write(terminal, f"{answer}\n".encode())
        done = noetl.wait(process)
    return done.code, done.out + done.err


def test_many_retries_are_confirmed_at_a_terminal(noetl: NoetlCommand, tmp_path: Path) -> None:
    assert noetl("run", playbook(tmp_path, "asked/a", FIRST + BAD + LAST)).code == 1
    before = len(noetl.json("exec", "list"))
    many = ("exec", "retry", "--failed", "--path", "asked/*", "--set", "n=7")
    code, said = answer_at_terminal(noetl, "n", *many)
    assert code == 1, said
    assert "retry 1 execution?" in said
    assert "nothing was changed" in said
    assert len(noetl.json("exec", "list")) == before
    code, said = answer_at_terminal(noetl, "y", *many)
    assert code == 0, said
    assert "completed" in said
    assert len(noetl.json("exec", "list")) == before + 1


def test_many_retries_are_refused_without_a_terminal_and_without_yes(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    assert noetl("run", playbook(tmp_path, "alone/a", FIRST + BAD + LAST)).code == 1
    before = len(noetl.json("exec", "list"))
    many = ("exec", "retry", "--failed", "--path", "alone/*", "--set", "n=7")
    for more in (), ("--json",):
        refused = noetl(*many, *more)
        assert (refused.code, refused.out) == (2, "")
        assert "--yes does it without asking" in refused.err
    assert noetl(*many, "--dry-run").code == 0
    assert len(noetl.json("exec", "list")) == before
    done = noetl(*many, "--yes")
    assert done.code == 0, done.err
    assert len(noetl.json("exec", "list")) == before + 1


def test_ctrl_c_at_the_question_ends_the_command_and_changes_nothing(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    assert noetl("run", playbook(tmp_path, "left/a", FIRST + BAD + LAST)).code == 1
    before = len(noetl.json("exec", "list"))
    many = ("exec", "retry", "--failed", "--path", "left/*", "--set", "n=7")
    with start_at_terminal(noetl, *many) as (process, _):
        assert process.stderr is not None
        while (character := process.stderr.read(1)) != "?":
            assert character, "it has ended without a question"
        process.send_signal(signal.SIGINT)
        assert noetl.wait(process).code == 130
    assert len(noetl.json("exec", "list")) == before
