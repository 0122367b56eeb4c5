"""The table of commands, and what a call of one command loads."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from noetl.cli import ALL_MODULES, COMMANDS, ENTRIES, GROUPS, choose_modules, make_application
from noetl.model.statuses import STATUSES


def list_commands(modules: tuple[str, ...]) -> dict[str, typer.core.TyperCommand]:
    return typer.main.get_command(make_application(modules)).commands  # type: ignore[attr-defined]


def test_table_has_the_commands_and_summaries_of_all_modules() -> None:
    loaded = list_commands(ALL_MODULES)
    assert list(loaded) == [*COMMANDS, *GROUPS]
    assert {name: command.get_short_help_str(200) for name, command in loaded.items()} == {
        name: entry.summary for name, entry in ENTRIES.items()
    }
    groups = [name for name, command in loaded.items() if hasattr(command, "commands")]
    assert groups == list(GROUPS)


def test_table_names_the_module_that_registers_a_command() -> None:
    for module in ALL_MODULES:
        app = typer.Typer()
        sys.modules[f"noetl.cli.{module}"].register(app)
        groups = [group.typer_instance.info.name for group in app.registered_groups]
        commands = [each.name or each.callback.__name__ for each in app.registered_commands]
        expected = [name for name, entry in ENTRIES.items() if entry.module == module]
        assert [*commands, *groups] == expected


@pytest.mark.parametrize(
    ("arguments", "modules"),
    [
        (["exec", "list", "--json"], ("executions",)),
        (["--", "run", "a.yaml"], ("run",)),
        (["--help", "exec"], ("executions",)),
        (["verify"], ("jobs",)),
        (["--version"], ()),
        (["exce", "list"], ()),
        ([], ()),
    ],
)
def test_first_word_chooses_the_module(arguments: list[str], modules: tuple[str, ...]) -> None:
    assert choose_modules(arguments) == modules


def test_help_is_the_same_with_and_without_loaded_modules() -> None:
    helps = {
        CliRunner().invoke(make_application(modules), ["--help"]).output
        for modules in ((), ALL_MODULES)
    }
    assert len(helps) == 1
    assert all(f"\n  {name} " in helps.copy().pop() for name in ENTRIES)


def test_misspelt_command_is_refused_with_the_one_that_was_meant() -> None:
    refused = CliRunner().invoke(make_application(choose_modules(["exce"])), ["exce", "list"])
    assert refused.exit_code == 2
    assert "Did you mean 'exec'?" in refused.output


def list_loaded_modules(*arguments: str, **variables: str) -> set[str]:
    """The modules that a process has loaded when its command has ended."""
    program = f"""
import os, sys
os.environ.update({variables!r})
sys.argv = ["noetl", *{arguments!r}]
from noetl.cli import main
try:
    main()
except SystemExit:
    pass
print("loaded:", *sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("loaded:")[2].split())


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--version",), ("exce", "list")])
def test_call_without_a_command_loads_no_command(arguments: tuple[str, ...]) -> None:
    loaded = list_loaded_modules(*arguments)
    assert not loaded & {f"noetl.cli.{module}" for module in ALL_MODULES}
    assert "noetl.settings" not in loaded


def test_command_loads_neither_other_commands_nor_their_libraries() -> None:
    loaded = list_loaded_modules("exec", "list", "--help")
    others = {"run", "testing", "playbooks", "server", "worker", "spark", "jobs", "doctor"}
    assert "noetl.cli.executions" in loaded
    assert not loaded & {f"noetl.cli.{module}" for module in others}
    assert not loaded & {"pyspark", "pyarrow", "fastapi", "duckdb", "noetl.client.local"}


def test_run_starts_the_database_before_it_loads_the_engine() -> None:
    loaded = list_loaded_modules("run", "--help")
    assert not loaded & {"noetl.engine", "noetl.playbook", "noetl.cli.launch", "asyncpg"}


def test_validate_loads_no_client() -> None:
    loaded = list_loaded_modules("validate", "--help")
    assert "noetl.playbook.validation" in loaded
    assert not loaded & {"noetl.cli.client", "noetl.settings", "noetl.engine", "httpx"}


def test_completion_loads_the_command_that_is_typed() -> None:
    typed = {"_NOETL_COMPLETE": "complete_bash", "COMP_WORDS": "noetl hook a", "COMP_CWORD": "2"}
    loaded = list_loaded_modules(**typed)
    assert "noetl.cli.hooks" in loaded
    assert "noetl.cli.jobs" not in loaded


def test_help_of_a_list_names_every_status() -> None:
    shown = CliRunner().invoke(make_application(("executions",)), ["exec", "list", "--help"]).output
    assert [status for status in STATUSES if status not in shown] == []
