"""Credentials over HTTP: written by anyone who may, read by nobody but a worker that uses one."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from noetl.model.errors import Conflict, InvalidInput, NotFound
from noetl.server.credentials.keys import KEY_FILE_NAME
from noetl.server.credentials.sealing import make_sealing_key
from tests.integration.api.api_server import (
    ApiServer,
    make_memory_ports,
    read_messages,
    run_api_server,
    run_api_server_on_postgres,
    run_worker,
)
from tests.vault import run_vault

CANARY = "canary-77d1a0c3"
USES = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: uses, path: tests/uses}
keychain: [{name: api, kind: bearer, credential: tokens}]
workflow:
  - step: fetch
    tool:
      - first: {kind: python, code: "result = {'n': len(t), 'echo': t}", input: {t: "{{ keychain.api.token }}"}}
      - second: {kind: secrets, name: tokens}
      - third: {kind: python, code: "raise ValueError('refused: ' + t)", input: {t: "{{ second.value.token }}"}}
"""
MISSING = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: missing, path: tests/missing}
workflow:
  - step: load
    tool: {kind: postgres, auth: nowhere, query: "select 1"}
"""


async def add(here: ApiServer, name: str, kind: str, **data: Any) -> Any:
    return await here.http.post("/api/credentials", json={"name": name, "kind": kind, "data": data})


async def test_values_go_in_and_do_not_come_out(tmp_path: Path) -> None:
    async with run_api_server(make_memory_ports(home=tmp_path)) as here:
        assert await here.get("/api/credentials") == {"credentials": []}
        added = await add(here, "tokens", "bearer", token=CANARY)
        assert (added.status_code, added.json()["created"]) == (201, True)
        again = await add(here, "tokens", "generic", token=CANARY + "2", more=[1])
        assert (again.status_code, again.json()["created"], again.json()["kind"]) == (
            200,
            False,
            "generic",
        )
        listed = await here.http.get("/api/credentials")
        (row,) = listed.json()["credentials"]
        assert row == {name: value for name, value in again.json().items() if name != "created"}
        assert (row["name"], row["kind"]) == ("tokens", "generic")
        for answer in (added, again, listed, await here.http.get("/api/credentials/tokens")):
            assert CANARY not in answer.text
        assert (await here.http.delete("/api/credentials/tokens")).json() == {"name": "tokens"}
        gone = await here.http.delete("/api/credentials/tokens")
        assert (gone.status_code, gone.json()["code"]) == (404, "NOT_FOUND")
        assert "noetl credential add tokens" in gone.json()["hint"]


async def test_a_refusal_says_what_is_wrong_and_repeats_no_value(tmp_path: Path) -> None:
    async with run_api_server(make_memory_ports(home=tmp_path)) as here:
        bodies: list[Any] = [
            {"name": "x", "kind": "bearer", "data": {"tokn": CANARY}},
            {"name": "x", "kind": "postgres", "data": {"password": CANARY}},
            {"name": "x", "kind": "nothing", "data": {"a": CANARY}},
            {"name": "x y", "kind": "generic", "data": {"a": CANARY}},
            {"name": "x", "kind": "generic", "data": CANARY},
            {"name": "x", "kind": "generic", "data": {"a": 1}, "dta": CANARY},
            {"name": "x", "kind": "generic", "data": {"a": CANARY * 10_000}},
        ]
        for body in bodies:
            answer = await here.http.post("/api/credentials", json=body)
            assert answer.status_code == 422, body
            assert CANARY not in answer.text
            assert answer.json()["hint"] or answer.json()["detail"]
        assert not (tmp_path / KEY_FILE_NAME).exists()


async def test_a_worker_gets_the_fields_and_a_broken_key_is_explained_to_it(tmp_path: Path) -> None:
    async with run_api_server(make_memory_ports(home=tmp_path)) as here:
        channel = here.open_channel()
        await add(here, "tokens", "bearer", token=CANARY)
        assert await channel.read_credential("tokens") == {"token": CANARY}
        for name in ("a/b", "é ü", "..", "x" * 300):  # any name that a playbook may use
            with pytest.raises(NotFound):
                await channel.read_credential(name)
        (tmp_path / KEY_FILE_NAME).chmod(0o644)
        with pytest.raises(InvalidInput, match="open to other users") as exposed:
            await channel.read_credential("tokens")
        assert "chmod 600" in (exposed.value.hint or "")
        (tmp_path / KEY_FILE_NAME).unlink()
        with pytest.raises(Conflict, match="was sealed with the key") as lost:
            await channel.read_credential("tokens")
        assert "copy the key file" in (lost.value.hint or "")
        await channel.close()


async def test_a_run_uses_it_fails_with_it_and_leaves_no_trace_of_it(tmp_path: Path) -> None:
    async with run_api_server(make_memory_ports(home=tmp_path)) as here, run_worker(here):
        await add(here, "tokens", "bearer", token=CANARY)
        await here.register(USES)
        execution_id = await here.start("tests/uses")
        seen = []
        async with here.http.stream("GET", f"/api/executions/{execution_id}/stream") as stream:
            async for name, _, data in read_messages(stream):
                seen.append(json.dumps(data))
                if name == "end":
                    break
        row = await here.wait_for_end(execution_id)
        assert row["status"] == "failed"
        assert "refused: ***" in row["failure"]["message"]
        page = await here.get(f"/api/executions/{execution_id}/events", limit=500)
        everything = json.dumps([seen, row, page]) + repr(vars(here.node.ports.stores.log))
        assert CANARY not in everything


async def test_a_value_in_vault_is_used_and_never_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_vault() as vault:
        vault.tokens["hvs.canary"] = {"ttl": 0, "renewable": False}
        vault.secrets["secret/data/tokens"] = {"api": CANARY}
        monkeypatch.setenv("NOETL_VAULT_ADDR", vault.address)
        monkeypatch.setenv("NOETL_VAULT_TOKEN", "hvs.canary")
        async with run_api_server(make_memory_ports(home=tmp_path)) as here, run_worker(here):
            reference = {"path": "secret/data/tokens", "fields": {"token": "api"}}
            assert (await add(here, "tokens", "vault", **reference)).status_code == 201
            (listed,) = (await here.get("/api/credentials"))["credentials"]
            assert listed["kind"] == "vault"
            channel = here.open_channel()
            assert CANARY not in str(await channel.read_credential("tokens"))
            await channel.close()
            await here.register(USES)
            execution_id = await here.start("tests/uses")
            row = await here.wait_for_end(execution_id)
            assert "refused: ***" in row["failure"]["message"]
            page = await here.get(f"/api/executions/{execution_id}/events", limit=500)
            assert CANARY not in json.dumps([row, page]) + repr(vars(here.node.ports.stores.log))
    assert "GET secret/data/tokens" in vault.asked


async def test_a_credential_that_is_not_there_names_itself_the_step_and_the_remedy(
    tmp_path: Path,
) -> None:
    async with run_api_server(make_memory_ports(home=tmp_path)) as here, run_worker(here):
        await here.register(MISSING)
        failure = (await here.wait_for_end(await here.start("tests/missing")))["failure"]
        assert (failure["code"], failure["step"]) == ("CREDENTIAL_MISSING", "load")
        assert "step load asks for 'nowhere'" in failure["message"]
        assert "noetl credential add nowhere" in failure["message"]
        assert "NOETL_CREDENTIAL_NOWHERE" in failure["message"]


ASKS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: asks, path: tests/asks}
keychain: [{name: api, kind: bearer, credential: tokens}]
workflow:
  - step: first
    tool: {kind: noop, input: {n: "{{ keychain.api.token | length }}"}}
    next: second
  - step: second
    tool: {kind: secrets, name: tokens}
"""


async def test_rotation_under_load_fails_nothing(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executions and readers use a credential while its key is replaced four times, and its value too."""
    async with (
        run_api_server_on_postgres(database, tmp_path, monkeypatch) as here,
        run_worker(here),
    ):
        await add(here, "tokens", "bearer", token=CANARY)
        for number in range(30):
            await add(here, f"other{number}", "generic", value=f"value-{number}")
        await here.register(ASKS)
        channel, stopping = here.open_channel(), asyncio.Event()

        async def read_again() -> int:
            count = 0
            while not stopping.is_set():
                assert (await channel.read_credential("tokens"))["token"].startswith(CANARY)
                count += 1
            return count

        readers = [asyncio.ensure_future(read_again()) for _ in range(3)]
        started = []
        for turn in range(4):
            started += [await here.start("tests/asks") for _ in range(10)]
            _put_new_key_first(tmp_path / KEY_FILE_NAME)
            await add(here, "tokens", "bearer", token=f"{CANARY}-{turn}")
            done = (await here.http.post("/api/credentials/rewrap", json={})).json()
            assert (done["left"], done["unreadable"], done["total"]) == (0, [], 31), done
            _remove_old_keys(tmp_path / KEY_FILE_NAME)
        rows = [await here.wait_for_end(execution_id) for execution_id in started]
        assert [row["status"] for row in rows] == ["completed"] * len(rows)
        stopping.set()
        assert all(count > 10 for count in await asyncio.gather(*readers))
        assert await channel.read_credential("tokens") == {"token": f"{CANARY}-3"}
        await channel.close()


def _put_new_key_first(path: Path) -> None:
    secret = base64.b64encode(make_sealing_key().secret) + b"\n"
    _replace_file(path, secret + path.read_bytes())


def _remove_old_keys(path: Path) -> None:
    _replace_file(path, path.read_bytes().splitlines(keepends=True)[0])


def _replace_file(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.touch(0o600)
    new.write_bytes(content)
    new.rename(path)
