"""Stored credentials as users have them: a home, processes, a real database; and a search for what must be nowhere."""

import base64
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import psycopg

from noetl.embedded import EmbeddedPostgres
from noetl.log.stored_json import decompress_json
from tests.stack import CommandOutput, NoetlCommand, Stack, run_stack, write_playbook
from tests.waiting import HANG_LIMIT_S, until

CANARY = 'canary-9c41"ü&e77b01'
FORMS = {
    CANARY,
    quote(CANARY, safe=""),
    json.dumps(CANARY)[1:-1],
    json.dumps(CANARY, ensure_ascii=False)[1:-1],
    base64.b64encode(CANARY.encode()).decode().rstrip("="),
    "canary-9c41",
}
# uses it in every way, waits until it may fail, and fails with it
USES = """  - step: use
    tool:
      - shout:
          kind: python
          code: "print(t)\\nresult = {{'echo': t, 'deep': [t]}}"
          input: {{t: "{{{{ keychain.api.token }}}}"}}
      - hold:
          kind: python
          code: "import os, time\\nwhile not os.path.exists(flag): time.sleep(0.01)\\nraise ValueError('no ' + t)"
          input: {{t: "{{{{ keychain.api.token }}}}", flag: {flag}}}
"""
KEYCHAIN = "keychain: [{name: api, kind: bearer, credential: tokens}]\nworkflow:"


def store_credential(noetl: NoetlCommand, name: str, kind: str, **fields: str) -> CommandOutput:
    """By standard input: on no command line."""
    return noetl.run_with_input(
        json.dumps(fields), "credential", "add", name, "--kind", kind, "--file", "-", "--json"
    )


def uses(folder: Path, flag: Path) -> Path:
    file = write_playbook(folder, "uses", USES.format(flag=flag))
    file.write_text(file.read_text().replace("workflow:", KEYCHAIN))
    return file


def test_credentials_without_a_server(noetl: NoetlCommand, tmp_path: Path) -> None:
    assert noetl.json("credential", "list") == []
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"token": "first-one"}))
    added = noetl("credential", "add", "tokens", "--kind", "bearer", "--file", file)
    assert (added.code, added.out) == (0, "credential tokens (bearer) is stored\n"), added.err
    assert stat.S_IMODE((noetl.home / "credentials.key").stat().st_mode) == 0o600
    again = noetl.json(
        "credential",
        "add",
        "tokens",
        "--kind",
        "bearer",
        "--data",
        json.dumps({"token": "abcdefgh"}),
    )
    assert (again["created"], again["kind"]) == (False, "bearer")
    assert [row["name"] for row in noetl.json("credential", "list")] == ["tokens"]
    assert "tokens" in noetl("credential", "list").out

    code = "result = t == 'abcdefgh'"
    steps = f'  - step: use\n    tool: {{kind: python, code: "{code}", input: {{t: "{{{{ keychain.api.token }}}}"}}}}\n'
    file = write_playbook(tmp_path, "checks", steps)
    file.write_text(file.read_text().replace("workflow:", KEYCHAIN))
    assert noetl.json("run", file)["result"] is True
    assert noetl.json("credential", "delete", "tokens") == {"name": "tokens"}
    failed = noetl.json("run", file, code=1)["error"]
    assert (failed["code"], failed["step"]) == ("CREDENTIAL_MISSING", "use")
    assert "noetl credential add tokens" in failed["message"]
    gone = noetl("credential", "delete", "tokens")
    assert (gone.code, gone.err.splitlines()[0]) == (2, "error: there is no credential 'tokens'")


def test_a_mounted_secret_is_used_by_its_name(noetl: NoetlCommand, tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "token").write_text("abcdefgh\n")
    noetl = noetl.and_env(NOETL_SECRETS_DIR=str(tmp_path))
    added = noetl("credential", "add", "tokens", "--mounted", "mounted", "--fields", "token")
    assert (added.code, added.out) == (0, "credential tokens (file) is stored\n"), added.err
    steps = "  - step: use\n    tool: {kind: python, code: 'result = len(t)', input: {t: '{{ keychain.api.token }}'}}\n"
    file = write_playbook(tmp_path, "checks", steps)
    file.write_text(file.read_text().replace("workflow:", KEYCHAIN))
    assert noetl.json("run", file)["result"] == len("abcdefgh")


def test_a_stored_database_is_used_by_its_name(noetl: NoetlCommand, tmp_path: Path) -> None:
    embedded = EmbeddedPostgres(noetl.home)
    try:
        added = store_credential(
            noetl, "warehouse", "postgres", dsn=str(embedded.ensure_postgres().data)
        )
        assert added.code == 0, added.err
        query = (
            "  - step: q\n    tool: {kind: postgres, auth: warehouse, query: 'select 42 as n'}\n"
        )
        assert noetl.json("run", write_playbook(tmp_path, "asks", query))["result"]["rows"] == [
            {"n": 42}
        ]
    finally:
        embedded.stop_postgres()


def test_what_cannot_be_stored_is_explained(noetl: NoetlCommand, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text('{"token": "canary')
    for words, arguments in {
        "bad.json is not JSON (line 1": ("x", "--kind", "bearer", "--file", file),
        "--data or from --file": ("x", "--kind", "bearer"),
        "--data is not a JSON object": ("x", "--kind", "bearer", "--data", '["canary"]'),
        "did you mean token?": ("x", "--kind", "bearer", "--data", '{"tokn": "canary"}'),
        "did you mean bearer?": ("x", "--kind", "barer", "--data", '{"token": "canary"}'),
        "No such file": ("x", "--kind", "bearer", "--file", tmp_path / "none.json"),
        "--kind with --file, or --vault, or --mounted": ("x",),
        "stand alone": ("x", "--vault", "secret/data/x", "--data", '{"token": "canary"}'),
        "--fields has an empty name": ("x", "--mounted", "x", "--fields", "a,,b"),
    }.items():
        done = noetl("credential", "add", *arguments)
        assert (done.code, done.out) == (2, ""), words
        assert words in done.err
        assert "canary" not in done.err
        assert "Traceback" not in done.err


def test_a_key_that_others_can_read_stops_a_server_before_it_starts(
    noetl: NoetlCommand, free_port: int
) -> None:
    assert store_credential(noetl, "tokens", "bearer", token="abcdefgh").code == 0
    key = noetl.home / "credentials.key"
    key.chmod(0o644)
    try:
        for done in (
            noetl("server", "start", "--port", free_port),
            store_credential(noetl, "more", "bearer", token="t"),
        ):
            assert done.code == 2, done.err
            assert f"error: {key} is open to other users (mode 0644)" in done.err
            assert f"hint: chmod 600 {key}" in done.err
    finally:
        key.chmod(0o600)


def test_a_secret_that_a_failing_run_used_is_nowhere(tmp_path: Path) -> None:
    """No server is there when the step fails, so that its report waits in the spool; then everything is searched."""
    noetl, flag = NoetlCommand(tmp_path / "home"), tmp_path / "fail"
    # With this lease the step goes on while no server is there.
    loud = noetl.with_env(NOETL_LOG_LEVEL="debug", NOETL_SHARD_LEASE_SEC="60")
    found: dict[str, bytes] = {}
    embedded = EmbeddedPostgres(noetl.home)
    dsns = embedded.ensure_postgres()
    try:
        with run_stack(loud, workers=1) as stack:
            client = noetl.with_env(NOETL_SERVER_URL=stack.url)
            added = store_credential(client, "tokens", "bearer", token=CANARY)
            assert added.code == 0, added.err
            running = client.start("run", uses(tmp_path, flag), "--json")
            until(
                lambda: has_rows(
                    dsns.control, "select from noetl.event where event_type = 'task.done'"
                )
            )
            found["arguments"] = b"".join(everything_running())
            stack.server.stop()
            flag.touch()
            spool = noetl.home / "spool" / "worker"
            until(lambda: any(spool.glob("*.report")))
            found["spool"] = b"".join(file.read_bytes() for file in spool.iterdir())
            stack.server.start()
            stack.wait_until_ready()
            said = client.wait(running)
            place = f"{stack.url}/api/executions/{said.json['execution_id']}"
            answers = [
                httpx.get(
                    f"{place}{what}",
                    headers=noetl.token_header,
                    trust_env=False,
                    timeout=HANG_LIMIT_S,
                ).text
                for what in ("", "/events?limit=500", "/stream")
            ]
        found.update(read_logs(stack))
    finally:
        found["database"] = b"".join(dump(dsns.control))
        embedded.stop_postgres()
    assert said.code == 1, said.err
    assert "no ***tokens.token***" in said.json["error"]["message"]
    assert b"worker started" in found["log of worker"]
    found["answers"] = "".join([*answers, said.out, said.err, added.out, added.err]).encode()
    found["home"] = b"".join(file.read_bytes() for file in noetl.home.rglob("*") if file.is_file())
    assert b"***tokens.token***" in found["answers"]
    assert b"***tokens.token***" in found["database"]
    assert b"***tokens.token***" in found["home"]
    for place, content in found.items():
        assert content, place
        for form in FORMS:
            assert form.encode() not in content, place


def read_logs(stack: Stack) -> dict[str, bytes]:
    return {f"log of {each.name}": each.read_log().encode() for each in stack.processes.values()}


def everything_running() -> Iterator[bytes]:
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield process.read_bytes()
        except OSError:  # it has ended
            continue


def has_rows(dsn: str, query: str) -> bool:
    with psycopg.connect(dsn) as connection:
        return bool(connection.execute(query).fetchall())


def dump(dsn: str) -> Iterator[bytes]:
    """Every value of every row of every table."""
    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "select schemaname, relname from pg_stat_user_tables"
        ).fetchall()
        for schema, table in tables:
            with connection.cursor().copy(
                f'copy (select * from "{schema}"."{table}") to stdout (format binary)'
            ) as rows:
                yield from map(bytes, rows)
        for column, table in (("state", "execution"), ("body", "command")):
            stored = f"select {column} from noetl.{table} where {column} is not null"
            yield from (decompress_json(value) for (value,) in connection.execute(stored))


def test_users_are_made_with_a_password_that_is_on_no_command_line(noetl: NoetlCommand) -> None:
    password = "correct horse battery"
    made = noetl.run_with_input(f"{password}\n", "user", "create", "Ada", "--role", "operator")
    assert (made.code, made.out) == (0, "user ada (operator) is made\n"), made.err
    changed = noetl("user", "roles", "ada", "--role", "author", "--role", "viewer")
    assert changed.code == 0, changed.err
    disabled = noetl.json("user", "disable", "ada")
    (user,) = noetl.json("user", "list")
    assert (user["name"], user["roles"]) == ("ada", ["author", "viewer"])
    assert user["disabled_at"] == disabled["disabled_at"] is not None
    for text, words in (("", "has no password"), ("short\n", "at least 12 characters")):
        refused = noetl.run_with_input(text, "user", "password", "ada")
        assert (refused.code, words in refused.err) == (2, True), refused.err
    as_argument = noetl("user", "password", "ada", password)
    assert as_argument.code == 2
