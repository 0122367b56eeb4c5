"""`VALUE_AS_CODE`: values that become part of a program of another interpreter."""

from pathlib import Path

import pytest
import yaml

from noetl.playbook.findings import Finding
from noetl.playbook.validation import load

ROOT = Path(__file__).parents[3]


def find_values_as_code(task: dict[str, object]) -> list[Finding]:
    document = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "p"},
        "workload": {"x": "v", "y": 1},
        "workflow": [{"step": "s", "tool": task}],
    }
    loaded = load(yaml.safe_dump(document, sort_keys=False, width=1000), file="p.yaml")
    assert not [one for one in loaded.errors if one.code != "SQL_PLACE"], loaded.errors
    return [one for one in loaded.findings if one.code == "VALUE_AS_CODE"]


def check_shell(command: object) -> list[Finding]:
    return find_values_as_code({"kind": "shell", "cmds": [command]})


X = "{{ workload.x }}"
SHELL_POSITIVES = [
    f"sh -c 'echo {X}'",
    f'sh -c "echo {X}"',
    f"sh -c {X}",
    f"/bin/bash -lc 'echo {X}'",
    f"bash -e -c 'ls {X}'",
    f"true && sh -c 'echo {X}'",
    f"cat f | xargs -n 1 sh -c 'echo {X}'",
    f"find . -name '*.csv' -exec sh -c 'cp \"$1\" {X}' _ {{}} \\;",
    f"sudo -u app bash -c 'echo {X}'",
    f"env A=1 sh -c 'echo {X}'",
    f"A=1 sh -c 'echo {X}'",
    f"timeout 5 sh -c 'echo {X}'",
    f"su app -c 'echo {X}'",
    f"eval echo {X}",
    f'eval "{X}"',
    f"trap 'rm {X}' EXIT",
    f"let n={X}+1",
    f"sh <<EOF\necho {X}\nEOF",
    f"bash -s <<-'END'\n\techo {X}\n\tEND",
    f"python3 <<EOF\nprint('{X}')\nEOF",
    f"psql mydb <<EOF\nselect '{X}'\nEOF",
    f'bash <<< "{X}"',
    f"echo {X} | sh",
    f"printf '%s' {X} | sort | bash -s",
    f"awk '{{print \"{X}\"}}' f",
    f"gawk -F , '$1 == \"{X}\"' f",
    f"perl -e 'print \"{X}\"'",
    f"perl -ne 'print if /{X}/' f",
    f"python -c 'print(\"{X}\")'",
    f"python3.11 -c \"print('{X}')\"",
    f"ruby -e 'puts \"{X}\"'",
    f"node -e 'console.log(\"{X}\")'",
    f"php -r 'echo \"{X}\";'",
    f"sed 's/a/{X}/' f",
    f"sed -e 's/a/{X}/' f",
    f"jq '.a == \"{X}\"' f",
    f"psql -c \"select '{X}'\"",
    f"mysql -e 'select {X}'",
    f"ssh host 'ls {X}'",
    f"echo $(( {X} + 1 ))",
    f"if (( {X} > 1 )); then echo a; fi",
    f"if [[ {X} -eq 1 ]]; then echo a; fi",
    f"echo $(sh -c 'echo {X}')",
    f"echo \"$(sh -c 'echo {X}')\"",
    f"for f in *; do sh -c 'echo {X}'; done",
    ["sh", "-c", f"echo {X}"],
    ["bash", "-c", X],
    ["sudo", "bash", "-c", f"echo {X}"],
    ["python3", "-c", f"print('{X}')"],
    ["awk", f"/{X}/", "file"],
    ["env", "A=1", "perl", "-e", f"print '{X}'"],
]
SHELL_NEGATIVES = [
    f"echo {X}",
    f'echo "{X}"',
    f"grep -c {X} file.txt | sort",
    f"grep sh -c {X}",
    f"echo 'sh -c {X}'",
    f"cat <<EOF\n{X}\nEOF",
    f"cat <<EOF | sort\n{X}\nEOF",
    f"sh -c 'echo \"$1\"' sh {X}",
    f"sh script.sh {X}",
    f"bash script.sh -c {X}",
    f"python3 script.py -c {X}",
    f"python3 -c 'import sys; print(sys.argv[1])' {X}",
    f"python3 - {X} <<'EOF'\nimport sys\nprint(sys.argv[1])\nEOF",
    f"awk -v x={X} '$1 == x' f",
    f"jq --arg x {X} '.a == $x' f",
    f"[ {X} -eq 1 ]",
    f"test {X} -gt 1",
    "echo $(( {{ workload.y | int }} + 1 ))",
    "sh -c 'sleep {{ workload.y | int }}'",
    f"ssh {X} uptime",
    f"find . -name {X}",
    f"# sh -c 'echo {X}'\necho a",
    f"xargs -n 1 echo {X}",
    f"echo {X} | sort | uniq",
    f"echo {X}; sh script.sh",
    ["sh", "-c", 'echo "$1"', "sh", X],
    ["python3", "script.py", X],
    ["echo", "sh", "-c", X],
    ["grep", X, "file"],
]
SQL_POSITIVES = [
    ("duckdb", f"select * from query('select * from t where a = {X}')"),
    ("duckdb", f"select * from query({X})"),
    ("duckdb", f"from query('select ' || {X})"),
    ("duckdb", f"select * from postgres_query('db', 'select {X}')"),
    ("postgres", f"select * from dblink('c', 'select {X}') as t(a int)"),
    ("postgres", f"select dblink_exec('c', 'delete from t where a = {X}')"),
    ("postgres", f"do $$ begin execute 'select {X}'; end $$"),
    ("postgres", f"do $$ begin execute format('select %s', '{X}'); end $$"),
    ("postgres", f"select query_to_xml('select {X}', true, true, '')"),
    ("spark", f"execute immediate 'select {X}'"),
    ("spark", f"EXECUTE IMMEDIATE {X}"),
    ("spark", f"execute immediate 'select ' || {X} into v"),
]
SQL_NEGATIVES = [
    ("duckdb", f"select * from t where a = {X}"),
    ("duckdb", f"select query from t where a = {X}"),
    ("duckdb", f"select {X} as query"),
    ("postgres", f"select * from t where a = {X} -- query('{X}')"),
    ("postgres", f"execute prepared({X})"),
    ("postgres", f"select 'query(' || {X} || ')'"),
    ("postgres", f"select format('%s', {X})"),
    ("spark", f"execute immediate 'select ?' using {X}"),
    ("spark", f"select reflect_me from t where a = {X}"),
]


@pytest.mark.parametrize("command", SHELL_POSITIVES, ids=str)
def test_a_value_in_a_program_of_a_shell_command_is_reported(command: object) -> None:
    [finding] = check_shell(command)
    assert finding.severity == "warning"
    assert (finding.file, finding.step) == ("p.yaml", "s")
    assert finding.line > 7
    assert finding.message.startswith("`{{ workload.x }}` becomes part of ")
    assert finding.hint


@pytest.mark.parametrize("command", SHELL_NEGATIVES, ids=str)
def test_a_value_that_is_data_of_a_shell_command_is_fine(command: object) -> None:
    assert check_shell(command) == []


@pytest.mark.parametrize(("kind", "query"), SQL_POSITIVES)
def test_a_value_in_sql_that_sql_runs_is_reported(kind: str, query: str) -> None:
    findings = find_values_as_code({"kind": kind, ("sql" if kind == "spark" else "query"): query})
    assert [(one.severity, one.step) for one in findings] == [("warning", "s")]
    assert findings[0].hint


@pytest.mark.parametrize(("kind", "query"), SQL_NEGATIVES)
def test_a_value_that_is_data_of_sql_is_fine(kind: str, query: str) -> None:
    assert find_values_as_code({"kind": kind, ("sql" if kind == "spark" else "query"): query}) == []


@pytest.mark.parametrize("folder", ["examples", "tests/e2e/playbooks", "bench"])
def test_no_playbook_of_ours_is_reported(folder: str) -> None:
    for file in (ROOT / folder).rglob("*.yaml"):
        findings = load(file.read_text(), file=str(file)).findings
        assert [str(one) for one in findings if one.code == "VALUE_AS_CODE"] == []


def test_the_place_in_a_script_of_many_lines_is_named() -> None:
    text = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workload: {x: v}
workflow:
  - step: s
    tool:
      kind: shell
      cmds: |
        echo {{ workload.x }}
        sh -c 'echo {{ workload.x }}'
"""
    [finding] = [one for one in load(text, file="p.yaml").findings if one.code == "VALUE_AS_CODE"]
    assert (finding.file, finding.line, finding.column) == ("p.yaml", 11, 21)
    assert "`sh -c`" in finding.message
    assert "argument" in str(finding.hint)
