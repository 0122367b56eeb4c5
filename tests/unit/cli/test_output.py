"""What the command says: hints name the command as it was called."""

import pytest

from noetl.cli.output import adapt_commands, find_called_command

UV = {"UV_RUN_RECURSION_DEPTH": "1"}


@pytest.mark.parametrize(
    ("program", "environment", "called"),
    [
        ("/usr/bin/noetl", {}, "noetl"),
        ("/app/.venv/bin/noetl", UV, "uv run noetl"),
        ("/app/src/noetl/__main__.py", {}, "python -m noetl"),
        ("/app/src/noetl/__main__.py", UV, "uv run python -m noetl"),
    ],
)
def test_a_command_is_named_as_it_was_called(
    program: str, environment: dict[str, str], called: str
) -> None:
    assert find_called_command(program, environment) == called


def test_only_commands_of_a_hint_are_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/app/.venv/bin/noetl"])
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    hint = "noetl exec get 7, or `noetl worker start`; see ~/.noetl logs"
    assert (
        adapt_commands(hint)
        == "uv run noetl exec get 7, or `uv run noetl worker start`; see ~/.noetl logs"
    )
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH")
    assert adapt_commands(hint) == hint
