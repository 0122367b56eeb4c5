"""Credentials, the keychain and the redactor."""

import asyncio
import base64
import json
import logging
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from noetl.model import events as e
from noetl.model.envelope import Envelope
from noetl.model.errors import Failure, InvalidInput, NotFound
from noetl.model.ids import CommandId
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.secrets.keychain import Keychain
from noetl.pipeline.secrets.redaction import RedactingFilter, Redactor
from noetl.playbook.model import KeychainEntry
from noetl.template.errors import NeedsData
from noetl.tools.credentials.managers import SecretFiles, SecretManagers
from noetl.tools.credentials.oauth import TokenCache
from noetl.tools.credentials.port import (
    ChainedCredentials,
    EnvCredentials,
    MemoryCredentials,
    read_variable,
)
from noetl.tools.port import Failed, Success
from tests.api.process import Api
from tests.rendering import render_value
from tests.unit.tools.calls import LOCAL_GUARD

SECRET = 'tiger"ü&lily+1'


def keychain(*entries: dict[str, Any], **credentials: dict[str, Any]) -> Keychain:
    return Keychain([KeychainEntry(**entry) for entry in entries], MemoryCredentials(credentials))


def render_template(chain: Keychain, template: Any) -> Any:
    async def render() -> Any:
        while True:
            try:
                return render_value(template, {"keychain": chain})
            except NeedsData as need:
                await chain.load(need.request)  # type: ignore[arg-type]

    return asyncio.run(render())


class SlowCredentials(MemoryCredentials):
    """Asked of another service, which answers late."""

    async def get(self, name: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        return await super().get(name)


def get_refusal(chain: Keychain, template: str) -> str:
    with pytest.raises(TaskFailed) as failing:
        render_template(chain, template)
    return failing.value.failure.code


# ---- credentials -------------------------------------------------------------------------------------------------------


def test_credentials_of_the_environment() -> None:
    known = EnvCredentials(
        {
            "NOETL_CREDENTIAL_MY_DB": '{"user": "u"}',
            "NOETL_CREDENTIAL_KEY": "k",
            "NOETL_CREDENTIAL_BAD": "{",
        }
    )
    assert asyncio.run(known.get("my-db")) == {"user": "u"}
    assert asyncio.run(known.get("key")) == {"value": "k"}
    assert asyncio.run(ChainedCredentials([MemoryCredentials(), known]).get("key")) == {
        "value": "k"
    }
    with pytest.raises(NotFound):
        asyncio.run(known.get("other"))
    with pytest.raises(InvalidInput):
        asyncio.run(known.get("bad"))


def test_the_workers_settings_are_not_for_playbooks() -> None:
    assert read_variable("API_KEY", {"API_KEY": "k"}) == "k"
    with pytest.raises(InvalidInput):
        read_variable("NOETL_DB_URL", {"NOETL_DB_URL": "x"})
    with pytest.raises(NotFound):
        read_variable("API_KEY", {})


# ---- the keychain ------------------------------------------------------------------------------------------------------


def test_kinds_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_TOKEN", "from-env")
    chain = keychain(
        {"name": "s", "kind": "static", "map": {"id": "demo", "token": "{{ keychain.c.token }}"}},
        {"name": "c", "kind": "credential", "credential": "stored"},
        {"name": "e", "kind": "env", "env": "THE_TOKEN"},
        {"name": "m", "kind": "env", "map": {"key": "THE_TOKEN"}},
        {"name": "b", "kind": "bearer", "credential": "stored"},
        {"name": "be", "kind": "bearer", "env": "THE_TOKEN"},
        {"name": "p", "kind": "basic", "auth": "login"},
        stored={"token": "abcdefgh"},
        login={"user": "ann", "password": "secret-1"},
    )
    template = {
        "s": "{{ keychain.s }}", "c": "{{ keychain.c.token }}", "e": "{{ keychain.e.value }}", "m": "{{ keychain.m.key }}",
        "b": "Bearer {{ keychain.b.value }}", "be": "{{ keychain.be.token }}",
        "p": "{{ keychain.p.username }}:{{ keychain.p.password }}",
    }  # fmt: skip
    assert render_template(chain, template) == {
        "s": {"id": "demo", "token": "abcdefgh"}, "c": "abcdefgh", "e": "from-env", "m": "from-env", "b": "Bearer abcdefgh",
        "be": "from-env", "p": "ann:secret-1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"kind": "oauth2", "url": "http://x"}, "CREDENTIAL_INVALID"),
        ({"kind": "oauth2", "map": {"client_id": "me"}}, "KEYCHAIN_INCOMPLETE"),
        ({"kind": "secret_manager"}, "CREDENTIAL_INVALID"),
        ({"kind": "credential", "credential": "none"}, "CREDENTIAL_MISSING"),
        ({"kind": "env", "env": "NO_SUCH_VARIABLE"}, "CREDENTIAL_MISSING"),
        ({"kind": "env", "env": "NOETL_DB_URL"}, "CREDENTIAL_INVALID"),
        ({"kind": "bearer", "map": {}}, "KEYCHAIN_INCOMPLETE"),
        ({"kind": "static", "map": {"a": "{{ keychain.x.a }}"}}, "KEYCHAIN_CYCLE"),
    ],
)
def test_an_entry_that_cannot_be_had_fails_the_task(entry: dict[str, Any], code: str) -> None:
    assert get_refusal(keychain({"name": "x", **entry}), "{{ keychain.x.a }}") == code


def test_auth_is_an_entry_a_credential_or_a_map() -> None:
    chain = keychain(
        {"name": "e", "kind": "static", "map": {"token": "t"}}, stored={"password": "p"}
    )
    assert asyncio.run(chain.resolve_auth("e")) == {"token": "t"}
    assert asyncio.run(chain.resolve_auth("stored")) == {"password": "p"}
    assert asyncio.run(chain.resolve_auth({"token": "x"})) == {"token": "x"}
    assert asyncio.run(chain.resolve_auth(None)) is None
    with pytest.raises(TaskFailed):
        asyncio.run(chain.resolve_auth("nobody"))


def test_the_whole_keychain_is_never_a_value() -> None:
    chain = keychain({"name": "e", "kind": "static", "map": {"token": "t"}})
    assert render_template(chain, "{{ keychain }}") == {"e": "***"}


# ---- the redactor ------------------------------------------------------------------------------------------------------


def redactor() -> Redactor:
    made = Redactor()
    made.register_credential(
        "db", {"host": "localhost", "user": "ann", "password": SECRET, "port": 5432, "pin": "1234"}
    )
    return made


@pytest.mark.parametrize(
    "shown",
    [
        SECRET, f"x{SECRET}y", base64.b64encode(SECRET.encode()).decode(), quote(SECRET, safe=""), json.dumps(SECRET),
        json.dumps({"a": SECRET}, ensure_ascii=False), base64.b64encode(f"ann:{SECRET}".encode()).decode(),
    ],
)  # fmt: skip
def test_a_secret_is_found_in_its_forms(shown: str) -> None:
    cleaned = redactor().redact_text(f"before {shown} after")
    assert "***db" in cleaned
    assert not any(
        part in cleaned for part in (SECRET, "lily", base64.b64encode(SECRET.encode()).decode()[:8])
    )


def test_a_secret_that_is_a_key_is_found_too() -> None:
    value = {"a": [{SECRET: 1, "b": 2}]}
    assert redactor().redact_value(value, payload=True) == {"a": [{"***db.password***": 1, "b": 2}]}
    event = e.CommandCompleted(
        command_id=CommandId("c"),
        attempt=1,
        result=Envelope(status="ok", context=value),
        set={"ctx.z": value},
    )
    found = redactor().redact_event_fields(event)
    assert found.set == {"ctx.z": {"a": [{"***db.password***": 1, "b": 2}]}}
    assert found.result.context == found.set["ctx.z"]


def test_what_is_not_secret_stays() -> None:
    assert redactor().redact_text("ann at localhost:5432") == "ann at localhost:5432"
    assert redactor().redact_value({"user": "ann", "n": 5432}) == {"user": "ann", "n": 5432}


def test_a_short_secret_does_not_damage_data() -> None:
    assert redactor().redact_value(["1234"], payload=True) == ["1234"]
    assert redactor().redact_text("pin 1234") == "pin ***db.pin***"


def test_outcomes_and_logs_are_cleaned() -> None:
    cleaner, lines = redactor(), []
    failed = cleaner.redact_outcome(
        Failed(
            Failure(code="X", message=f"no {SECRET}", detail={"a": [SECRET]}),
            {"http": {"u": SECRET}},
        )
    )
    done = cleaner.redact_outcome(Success({"rows": [{"a": SECRET}]}, {"py": 1}))
    cleaner.redact_log(lambda *line: lines.append(line))("stdout", f"<{SECRET}>")
    assert SECRET not in repr((failed, done, lines))
    assert isinstance(done, Success)
    assert done.value == {"rows": [{"a": "***db.password***"}]}


def test_an_event_keeps_what_makes_it_that_event() -> None:
    cleaner = Redactor()
    cleaner.register_secret("x", "load_orders")
    event = e.TaskDone(
        command_id=CommandId("load_orders"), attempt=1, task="load_orders", run=1, goto=1, step="load_orders",
        result=Envelope(status="ok", context={"said": "load_orders", "uri": "noetl://execution/1/result/load_orders/k"}),
        set={"ctx.a": {"task": "load_orders"}},
    )  # fmt: skip
    clean = cleaner.redact_event_fields(event)
    assert (clean.command_id, clean.task, clean.step, clean.key) == (
        "load_orders",
        "load_orders",
        "load_orders",
        event.key,
    )
    assert clean.result.context == {
        "said": "***x***",
        "uri": "noetl://execution/1/result/load_orders/k",
    }
    assert clean.set == {"ctx.a": {"task": "***x***"}}


def test_log_records_are_cleaned(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("noetl.test_keychain")
    logger.addFilter(RedactingFilter(redactor()))
    with caplog.at_level("INFO"):
        try:
            raise ValueError(SECRET)
        except ValueError:
            logger.exception("failed with %s", SECRET, extra={"told": SECRET})
    assert SECRET not in caplog.text
    assert SECRET not in repr(vars(caplog.records[0]).get("told"))


# ---- tokens and secret managers ------------------------------------------------------------------------------------------

CLIENT = {"client_id": "me", "client_secret": "corpus-secret-client"}
TOKEN = "{{ keychain.crm.token }}"


def by_oauth(
    url: str, tokens: TokenCache | None = None, fields: dict[str, Any] | None = None, **more: Any
) -> Keychain:
    entry = KeychainEntry(name="crm", kind="oauth2", credential="client", url=url, **more)
    credentials = MemoryCredentials({"client": fields or CLIENT})
    return Keychain([entry], credentials, tokens=tokens or TokenCache(LOCAL_GUARD))


def test_a_token_is_asked_for_once_and_kept_while_it_lasts(api: Api) -> None:
    tokens, url = TokenCache(LOCAL_GUARD), f"{api.url}/oauth/600/token"
    first = render_template(by_oauth(url, tokens, scope="read"), TOKEN)
    assert first.startswith("corpus-secret-client_credentials-read-")
    assert render_template(by_oauth(url, tokens, scope="read"), "{{ keychain.crm.value }}") == first
    assert render_template(by_oauth(url, tokens, scope="write"), TOKEN) != first
    assert render_template(by_oauth(url, scope="read"), TOKEN) != first


@pytest.mark.parametrize(("lasts", "more"), [(20, {}), (600, {"ttl": "25s"})])
def test_a_token_that_ends_soon_is_asked_for_again(
    api: Api, lasts: int, more: dict[str, Any]
) -> None:
    tokens, url = TokenCache(LOCAL_GUARD), f"{api.url}/oauth/{lasts}/token"
    assert render_template(by_oauth(url, tokens, **more), TOKEN) != render_template(
        by_oauth(url, tokens, **more), TOKEN
    )


def test_a_refresh_token_is_used_where_there_is_one(api: Api) -> None:
    fields = {"client_id": "me", "refresh_token": "corpus-secret-refresh"}
    token = render_template(by_oauth(f"{api.url}/oauth/0/token", fields=fields), TOKEN)
    assert token.startswith("corpus-secret-refresh_token-none-")


def test_a_token_that_is_refused_says_why_and_no_secret(api: Api) -> None:
    chain = by_oauth(
        f"{api.url}/oauth/600/token", fields={"client_id": "me", "client_secret": "another-one"}
    )
    with pytest.raises(TaskFailed) as failing:
        render_template(chain, TOKEN)
    failure = failing.value.failure
    assert (failure.code, failure.retryable) == ("CREDENTIAL_INVALID", False)
    assert "401 invalid_client" in failure.message
    assert "another-one" not in failure.message
    assert get_refusal(by_oauth("http://127.0.0.1:9/token"), TOKEN) == "CREDENTIAL_UNAVAILABLE"
    assert get_refusal(by_oauth(f"{api.url}/health"), TOKEN) == "CREDENTIAL_INVALID"
    assert get_refusal(by_oauth(f"{api.url}/oauth/flood"), TOKEN) == "CREDENTIAL_INVALID"
    assert (
        get_refusal(by_oauth(f"{api.url}/hosts/httpbin/status/503"), TOKEN)
        == "CREDENTIAL_UNAVAILABLE"
    )
    assert (
        get_refusal(by_oauth("http://127.0.0.1:9", fields={"a": "b"}), TOKEN)
        == "CREDENTIAL_INVALID"
    )


def make_keychain(known: dict[str, Any], **entry: Any) -> Keychain:
    return Keychain(
        [KeychainEntry(name="vault", kind="secret_manager", **entry)],
        managers=SecretManagers(known),
    )


def test_a_secret_manager_is_asked_by_the_names_of_the_map(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "password").write_text("tiger lily\n")
    (tmp_path / "outside").symlink_to("/etc/hostname")
    files = SecretFiles({"NOETL_SECRETS_DIR": str(tmp_path)})
    chain = make_keychain({"file": files}, map={"password": "db/password"})
    assert render_template(chain, "{{ keychain.vault.password }}") == "tiger lily"
    assert "tiger lily" not in chain.redactor.redact_text("it is tiger lily")
    assert (
        render_template(
            make_keychain({"file": files}, credential="db/password"), "{{ keychain.vault.value }}"
        )
        == "tiger lily"
    )
    for name in ("db/other", "../x", "/etc/hostname", "outside", "db"):
        assert (
            get_refusal(make_keychain({"file": files}, map={"p": name}), "{{ keychain.vault.p }}")
            == "CREDENTIAL_MISSING"
        )
    nowhere = make_keychain({"file": SecretFiles({})}, map={"p": "x"})
    assert get_refusal(nowhere, "{{ keychain.vault.p }}") == "CREDENTIAL_INVALID"
    assert (
        get_refusal(make_keychain({}, provider="nobody"), "{{ keychain.vault.value }}")
        == "CREDENTIAL_INVALID"
    )


def test_items_that_ask_for_an_entry_at_the_same_time_all_get_it() -> None:
    entry = KeychainEntry(name="api", kind="bearer", credential="tokens")
    chain = Keychain([entry], SlowCredentials({"tokens": {"token": SECRET}}))

    async def ask_together() -> list[Any]:
        return await asyncio.gather(*(chain.resolve_auth("api") for _ in range(3)))

    assert [fields["token"] for fields in asyncio.run(ask_together())] == [SECRET] * 3
