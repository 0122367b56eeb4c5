"""The shell tool, with real processes."""

import asyncio
import os
import select
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.tools.port import Outcome
from noetl.tools.shell import Shell, replace_markers
from tests.unit.tools.calls import call, closing, failure, run, value


def outcome(*cmds: Any, scope: dict[str, Any] | None = None, **config: Any) -> Outcome:
    [found] = run(closing(Shell(), call({"cmds": list(cmds), **config}, scope)))
    return found


def run_shell(*cmds: Any, **scope: Any) -> str:
    text: str = value(outcome(*cmds, scope=scope))["stdout"]
    return text


def test_commands_run_in_order_and_their_output_is_the_value() -> None:
    found = value(
        outcome("echo one; echo bad >&2", ["printf", "%s-%s", "two", "{{ x }}"], scope={"x": "a b"})
    )
    assert found == {
        "exit_code": 0,
        "stdout": "one\ntwo-a b",
        "stderr": "bad\n",
        "commands": [
            {"command": "echo one; echo bad >&2", "exit_code": 0},
            {"command": ["printf", "%s-%s", "two", "{{ x }}"], "exit_code": 0},
        ],
    }


def test_the_first_that_fails_is_the_end() -> None:
    found = failure(outcome("echo before", "echo why >&2; exit 3", "echo after"))
    assert (found.code, found.message) == ("SHELL_EXIT", "command 2 ended with exit code 3: why")
    assert (found.detail["exit_code"], found.detail["stderr"]) == (3, "why\n")
    assert failure(outcome("kill -9 $$")).message == "command 1 was killed by SIGKILL"
    assert failure(outcome(["no-such-program"])).detail["exit_code"] == 127


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("printf %s {{ x }}", "{x}"),
        ("printf %s 'a {{ x }} b'", "a {x} b"),
        ('printf %s "a {{ x }} b"', "a {x} b"),
        ('printf %s "$(printf %s {{ x }})"', "{x}"),
        ("printf %s {{ x }}'{{ x }}'\"{{ x }}\"", "{x}{x}{x}"),
        ("# it's {{ x }}\nprintf %s {{ x }}", "{x}"),
        ("printf %s it\\'s{{ x }}", "it's{x}"),
        ("(printf %s {{ x }})", "{x}"),
        ("printf %s \"${NOTHING:-{{ x }}}\"", "{x}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "x",
    [
        "v",
        "a  b",
        "'",
        '"',
        "$(echo no)",
        "`echo no`",
        "${HOME}",
        "; echo no",
        "*",
        "\\",
        "a\\n",
        "-n",
    ],
)
def test_a_value_is_data_in_whatever_quotes(script: str, expected: str, x: str) -> None:
    assert run_shell(script, x=x) == expected.replace("{x}", x)


@settings(max_examples=10)
@given(
    st.lists(
        st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
        min_size=1,
        max_size=20,
    )
)
def test_any_text_comes_back_unchanged(texts: list[str]) -> None:
    script = "; ".join(
        f"printf '%s\\001%s\\001' {{{{ x[{n}] }}}} '{{{{ x[{n}] }}}}'" for n in range(len(texts))
    )
    expected = "".join(f"{x}\001{x}\001" for x in texts)
    assert run_shell(script, x=texts) == expected
    assert run_shell(
        ["printf", "%s\\001", *[f"{{{{ x[{n}] }}}}" for n in range(len(texts))]], x=texts
    ) == "".join(f"{x}\001" for x in texts)


@given(st.text(alphabet="'\"`$(){}\\# \nab", max_size=30))
def test_no_surroundings_make_a_value_code(around: str) -> None:
    """The value is never in the script."""
    from noetl.template.model import MarkedValue

    made, env = replace_markers(
        f"{around}\ue0000\ue000{around}", [MarkedValue("\ue0000\ue000", "$(evil)", "value")]
    )
    assert "evil" not in made
    assert env == {"NOETL_VALUE_1": "$(evil)"}


@pytest.mark.parametrize(
    ("cmd", "code"),
    [
        ("echo {{ x | sql }}", "SHELL_VALUE"),
        ("echo {{ zero }}", "SHELL_VALUE"),
        ([""], "SHELL_COMMAND"),
    ],
)
def test_what_is_refused(cmd: Any, code: str) -> None:
    assert failure(outcome(cmd, scope={"x": "ls", "zero": "a\0b"})).code == code


def test_too_much_is_refused() -> None:
    assert failure(outcome("echo {{ x }}", scope={"x": "y" * 200_000})).code == "SHELL_TOO_LARGE"


def test_environment_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_DB_URL", "hush")
    found = value(outcome("pwd; echo $A-$NOETL_DB_URL", env={"A": 5}, cwd=str(tmp_path)))
    assert found["stdout"] == f"{tmp_path}\n5-\n"
    own = value(outcome("pwd; touch x; ls"))["stdout"].split()
    assert own[1:] == ["x"]
    assert not os.path.exists(own[0])
    assert failure(outcome("pwd", cwd="/no/such/folder")).detail["exit_code"] == 127


def test_output_is_logged_and_bounded() -> None:
    lines: list[tuple[str, str]] = []
    config = {"cmds": ["echo a; echo b >&2; head -c 3000000 /dev/zero | tr '\\0' x"]}
    [found] = run(closing(Shell(), call(config, log=lambda *line: lines.append(line))))
    assert ("stdout", "a") in lines
    assert ("stderr", "b") in lines
    assert len(value(found)["stdout"]) == 1024 * 1024
    assert sum(len(line) for _, line in lines) < 1_200_000


def cancel_script(script: str) -> list[int]:
    """Descriptors of the processes it named."""

    async def test() -> list[int]:
        tool, said = Shell(), asyncio.get_running_loop().create_future()
        heard: Callable[[str, str], None] = lambda _, line: said.done() or said.set_result(line)  # noqa: E731
        task: Awaitable[Outcome] = asyncio.ensure_future(
            tool.run(call({"cmds": [script]}, log=heard))
        )
        processes = [os.pidfd_open(int(pid)) for pid in (await said).split()]
        assert isinstance(task, asyncio.Task)
        task.cancel()
        await asyncio.wait([task])
        await tool.close()
        return processes

    found: list[int] = run(test())
    return found


@pytest.mark.parametrize(
    "script",
    [
        "sleep 600 & echo $$ $!; wait",
        "trap '' TERM; setsid sleep 600 & echo $$ $!; while :; do sleep 1; done",
    ],
)
def test_cancelling_stops_everything(script: str) -> None:
    for process in cancel_script(script):
        assert select.select([process], [], [], 0)[0]
        os.close(process)


def test_what_runs_in_the_background_ends_with_the_command() -> None:
    pid = int(run_shell("sleep 600 >/dev/null 2>&1 & echo $!"))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_quoting_reads_like_the_shell() -> None:
    assert shlex.split(run_shell("printf %s \"'{{ x }}'\"", x="a")) == ["a"]
