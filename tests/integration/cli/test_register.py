"""What a registered playbook names and the server does not have is said when it is registered."""

from pathlib import Path

from tests.integration.cli.conftest import Noetl, playbook

PARENT = (
    "  - step: call\n    tool: {kind: playbook, path: etl/child}\n    next: load\n"
    "  - step: load\n    tool: {kind: postgres, auth: warehouse, query: select 1}\n    next: own\n"
    "  - step: own\n    tool: {kind: postgres, auth: local, query: select 1}\n    next: computed\n"
    "  - step: computed\n    tool: {kind: playbook, path: 'etl/{{ workload.x }}'}\n"
)


def test_register_warns_of_children_and_credentials_that_are_not_there(noetl: Noetl, tmp_path: Path) -> None:
    parent = playbook(tmp_path, "parent", PARENT)
    done = noetl("catalog", "register", str(parent))
    assert done.code == 0, done.err
    assert "no playbook `etl/child` is registered" in done.err
    assert "no credential `warehouse` is stored" in done.err
    assert "NOETL_CREDENTIAL_WAREHOUSE" in done.err
    assert done.err.count("warning:") == 2

    (row,) = noetl.json("catalog", "register", str(parent))
    codes = [finding["code"] for finding in row["findings"] if finding["severity"] == "warning"]
    assert codes == ["UNKNOWN_PLAYBOOK", "UNKNOWN_CREDENTIAL"]

    child = tmp_path / "child.yaml"
    child.write_text(playbook(tmp_path, "other", "  - step: only\n").read_text())
    assert noetl("catalog", "register", str(child), "--path", "etl/child").code == 0
    assert "etl/child" not in noetl("catalog", "register", str(parent)).err
