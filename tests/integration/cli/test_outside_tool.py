"""A tool that comes in a package of its own: with the package it is checked and runs, without it that is said."""

import hashlib
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.stack import ROOT, NoetlCommand, run_stack, write_playbook

EXAMPLE = ROOT / "examples" / "outside_tool"
PLAYBOOK = EXAMPLE / "playbook.yml"


@pytest.fixture(scope="module")
def command_with_tool(
    noetl: NoetlCommand, tmp_path_factory: pytest.TempPathFactory
) -> NoetlCommand:
    """The example as an installer leaves it, in a folder of its own."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(
        EXAMPLE / "noetl_checksum",
        folder / "noetl_checksum",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    info = folder / f"noetl_checksum-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = [
        f"[{group}]\n" + "\n".join(f"{name} = {place}" for name, place in named.items())
        for group, named in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(points))
    return noetl.with_env(PYTHONPATH=str(folder))


def test_with_the_package_it_is_known_checked_and_runs(
    command_with_tool: NoetlCommand, tmp_path: Path
) -> None:
    done = command_with_tool("validate", PLAYBOOK)
    assert (done.code, done.out) == (0, ""), done.err
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(PLAYBOOK.read_text().replace("algorithm: sha256", "algoritm: sha256"))
    for command in (("validate",), ("catalog", "register"), ("run",)):
        done = command_with_tool(*command, wrong)
        assert done.code in (1, 2)
        assert "`algoritm` of checksum" in done.out + done.err
    file = tmp_path / "data"
    file.write_bytes(b"abc")
    for where in ((), ("--memory",)):
        said = command_with_tool.json("run", PLAYBOOK, "--set", f"file={file}", *where)
        assert (said["status"], said["steps"]["sum"]["status"]) == ("completed", "completed")
    assert (
        command_with_tool.json("result", "show", "@latest", "sum")["digest"]
        == hashlib.sha256(b"abc").hexdigest()
    )


def test_a_server_without_the_package_leaves_it_to_workers_that_have_it(
    noetl: NoetlCommand, command_with_tool: NoetlCommand, tmp_path: Path
) -> None:
    with run_stack(noetl) as stack:
        client = stack.client
        with stack.run_worker(**command_with_tool.settings):
            done = client("run", PLAYBOOK, "--set", f"file={PLAYBOOK}", "--json")
            assert done.json["status"] == "completed"
            assert "no tool `checksum` here" in done.err
            slip = write_playbook(
                tmp_path, "slip", "  - step: a\n    tool: {kind: pyton, code: x}\n"
            )
            assert (
                client.json("run", slip, code=2)["error"]["findings"][0]["hint"]
                == "did you mean `python`?"
            )


def test_without_the_package_validating_warns_and_the_step_says_what_is_missing(
    noetl: NoetlCommand,
) -> None:
    done = noetl("validate", "examples")
    assert done.code == 0, done.out
    assert "playbook.yml:7:18: warning UNKNOWN_KIND no tool `checksum` here (step sum)" in done.out
    assert noetl("validate", "examples", "--strict").code == 1
    failed = noetl.json("run", PLAYBOOK, code=1)["error"]
    assert (failed["code"], failed["step"]) == ("TOOL_UNAVAILABLE", "sum")
    assert "install the package that brings it" in failed["message"]


def test_a_package_that_cannot_be_loaded_is_left_out(
    command_with_tool: NoetlCommand, tmp_path: Path
) -> None:
    site = command_with_tool.settings["PYTHONPATH"]
    (tmp_path / "noetl_checksum.py").write_text("raise ImportError('needs more')")
    broken = command_with_tool.with_env(PYTHONPATH=f"{tmp_path}:{site}")
    done = broken("validate", "examples")
    assert done.code == 0
    assert "tool left out" in done.err
    assert "needs more" in done.err
    assert broken.json("run", "examples/hello.yaml")["status"] == "completed"
