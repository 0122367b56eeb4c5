"""The embedded database ends with the command that started it, while other commands begin: they start it again."""

from pathlib import Path

import pytest

from tests.stack import NoetlCommand, write_playbook

ROUNDS = 2
STEP = """\
  - step: only
    tool: {kind: python, code: "result = 1"}
"""


@pytest.fixture
def file(noetl: NoetlCommand, tmp_path: Path) -> Path:
    file = write_playbook(tmp_path, "only", STEP)
    noetl.json("run", file)
    return file


def test_a_run_begins_while_short_commands_start_and_end_the_database(
    noetl: NoetlCommand, file: Path
) -> None:
    for _ in range(ROUNDS):
        short = [noetl.start("exec", "list", "--json") for _ in range(2)]
        running = noetl.start("run", file, "--json")
        while running.poll() is None:
            for command in short:
                listed = noetl.wait(command)
                assert (listed.code, listed.err) == (0, "")
            short = [noetl.start("exec", "get", "@latest", "--json")]
        done = noetl.wait(running)
        assert (done.code, done.err) == (0, "")
        assert done.json["result"] == 1
        assert noetl.wait(short[0]).code == 0
