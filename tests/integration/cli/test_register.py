"""What a playbook names and the server does not have is said when it is registered or validated against that server."""

from pathlib import Path

from tests.stack import NoetlCommand, run_stack, write_playbook

PARENT = (
    "  - step: call\n    tool: {kind: playbook, path: etl/child}\n    next: load\n"
    "  - step: load\n    tool: {kind: postgres, auth: warehouse, query: select 1}\n    next: own\n"
    "  - step: own\n    tool: {kind: postgres, auth: local, query: select 1}\n    next: computed\n"
    "  - step: computed\n    tool: {kind: playbook, path: 'etl/{{ workload.x }}'}\n"
)


def test_register_warns_of_children_and_credentials_that_are_not_there(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    parent = write_playbook(tmp_path, "parent", PARENT)
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
    child.write_text(write_playbook(tmp_path, "other", "  - step: only\n").read_text())
    assert noetl("catalog", "register", str(child), "--path", "etl/child").code == 0
    assert "etl/child" not in noetl("catalog", "register", str(parent)).err


def test_validate_warns_of_what_a_server_does_not_have(noetl: NoetlCommand, tmp_path: Path) -> None:
    children = "".join(
        f"  - step: {step}\n    tool: {{kind: playbook, path: {path}}}\n    next: {following}\n"
        for step, path, following in [
            ("a", "lake/stored", "b"),
            ("b", "lake/beside", "c"),
            ("c", "lake/nowhere", "d"),
        ]
    )
    parent = write_playbook(
        tmp_path,
        "family",
        f"{children}  - step: d\n    tool: {{kind: postgres, auth: lake, query: select 1}}\n",
    )
    beside = write_playbook(tmp_path, "beside", "  - step: only\n")
    beside.write_text(
        beside.read_text().replace("{name: beside}", "{name: beside, path: lake/beside}")
    )
    assert noetl("catalog", "register", beside, "--path", "lake/stored").code == 0

    with run_stack(noetl) as stack:
        url = stack.url
        found = noetl.json("validate", parent, beside, "--server", url)
        alone = noetl.json("validate", parent, "--server", url)
        assert noetl("validate", parent, "--server", url, "--strict").code == 1
    lines = parent.read_text().splitlines()
    assert [(row["severity"], row["code"], row["file"]) for row in found] == [
        ("warning", "UNKNOWN_PLAYBOOK", str(parent)),
        ("warning", "UNKNOWN_CREDENTIAL", str(parent)),
    ]
    assert "lake/nowhere" in lines[found[0]["line"] - 1]
    assert "no playbook `lake/beside` is registered" in [row["message"] for row in alone]

    assert noetl.json("validate", parent) == []
    away = noetl("validate", parent, "--server", url)
    assert away.code != 0
    assert "Traceback" not in away.err
    assert url in away.err
