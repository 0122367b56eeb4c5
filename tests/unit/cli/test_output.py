"""What the command says: hints name the command as it was called."""

import pytest

from noetl.cli.output import as_called, command_called

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
    assert command_called(program, environment) == called


def test_only_commands_of_a_hint_are_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/app/.venv/bin/noetl"])
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    hint = "noetl exec get 7, or `noetl worker start`; see ~/.noetl logs"
    assert (
        as_called(hint)
        == "uv run noetl exec get 7, or `uv run noetl worker start`; see ~/.noetl logs"
    )
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH")
    assert as_called(hint) == hint
