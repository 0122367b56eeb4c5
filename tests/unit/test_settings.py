"""How variables are read, and which of them nothing reads."""

import math
import os
from pathlib import Path

import pytest

from noetl import settings
from noetl.model.errors import InvalidInput
from noetl.settings_group import SettingsGroup


def test_every_setting_is_known_and_so_are_variables_of_other_uses() -> None:
    known = [
        settings.variable_name(concern, field)
        for concern in settings.SETTINGS_GROUPS
        for field in concern.fields
    ]
    others = [
        "NOETL_CREDENTIAL_PG",
        "NOETL_SECRET_KEY",
        "NOETL_SECRETS_DIR",
        "NOETL_VAULT_ADDR",
        "NOETL_ENV_HOST",
        "PATH",
        "noetl_x",
    ]
    assert settings.find_unknown_variables([*known, *others]) == {}


def test_the_setting_that_was_meant_exists() -> None:
    found = settings.find_unknown_variables(
        ["NOETL_SHARDS_COUNT", "NOETL_WORKER_SLOT", "NOETL_FROBNICATE"]
    )
    assert found == {
        "NOETL_FROBNICATE": None,
        "NOETL_SHARDS_COUNT": "NOETL_SHARD_COUNT",
        "NOETL_WORKER_SLOT": "NOETL_WORKER_SLOTS",
    }


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in os.environ:
        if name.upper().startswith("NOETL_"):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("concern", "field", "text", "value"),
    [
        (settings.ListenSettings, "port", " 2 ", 2),
        (settings.ListenSettings, "port", "3.0", 3),
        (settings.ListenSettings, "port", "", 8082),
        (settings.ShardSettings, "lease_sec", "2.5", 2.5),
        (settings.RetentionSettings, "retention_days", "inf", math.inf),
        (settings.HomeSettings, "debug", "Yes", True),
        (settings.HomeSettings, "debug", "off", False),
        (settings.HomeSettings, "home", "~/x", Path("~/x")),
        (settings.HomeSettings, "log_level", "INFO", "INFO"),
        (settings.StorageSettings, "default_store_tier", "kv", "kv"),
        (settings.WorkerProcessSettings, "worker_pools", " a , b ,", ("a", "b")),
    ],
)
def test_variable_is_read_as_the_type_of_its_field(
    environment: pytest.MonkeyPatch,
    concern: type[SettingsGroup],
    field: str,
    text: str,
    value: object,
) -> None:
    environment.setenv(settings.variable_name(concern, field), text)
    assert getattr(settings.read_settings(concern), field) == value


@pytest.mark.parametrize(
    ("concern", "field", "text", "problem"),
    [
        (settings.ListenSettings, "port", "3.5", "'3.5' is not a whole number"),
        (settings.ListenSettings, "port", "65536", "must be at most 65535, not 65536"),
        (settings.ListenSettings, "port", "-1", "must be at least 0, not -1"),
        (settings.ShardSettings, "lease_sec", "١", "'١' is not a number"),
        (settings.ShardSettings, "lease_sec", "nan", "must be at most 300, not nan"),
        (settings.HomeSettings, "debug", "2", "'2' is neither true nor false"),
        (settings.HomeSettings, "log_level", "loud", "'loud' does not match the pattern"),
        (settings.WorkerProcessSettings, "worker_id", "ok\n", "'ok\\n' does not match the pattern"),
        (settings.WorkerProcessSettings, "worker_pools", ",", "no pool is named"),
        (settings.HomeSettings, "server_url", "nope", "'nope' is not the address of a server"),
        (
            settings.HomeSettings,
            "server_url",
            "http://",
            "'http://' is not the address of a server",
        ),
        (settings.HomeSettings, "server_url", "http://a:99999", "'http://a:99999' is not the"),
        (settings.HomeSettings, "server_url", "http://a,b", "'b' is not the address of a server"),
        (
            settings.StorageSettings,
            "default_store_tier",
            "AUTO",
            "'AUTO' is not one of auto, kv, disk, object",
        ),
    ],
)
def test_variable_that_does_not_fit_is_named_with_what_is_accepted(
    environment: pytest.MonkeyPatch,
    concern: type[SettingsGroup],
    field: str,
    text: str,
    problem: str,
) -> None:
    variable = settings.variable_name(concern, field)
    environment.setenv(variable, text)
    with pytest.raises(InvalidInput) as raised:
        settings.read_settings(concern)
    assert str(raised.value).startswith(f"{variable}: {problem}")
    assert raised.value.hint == f"docs/settings.md says what {variable} means"


def test_several_servers_are_separated_by_commas(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("NOETL_SERVER_URL", "http://a.b:1/, HTTPS://me:key@[::1]:2/c ,")
    urls = settings.read_settings(settings.HomeSettings).server_urls
    assert urls == ["http://a.b:1", "HTTPS://me:key@[::1]:2/c"]


def test_given_value_wins_over_the_variable_and_is_checked_too(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.setenv("noetl_port", "81")
    environment.setenv("NOETL_HOST", "")
    assert settings.read_settings(settings.ListenSettings, port=None).port == 81
    assert settings.read_settings(settings.ListenSettings, port=5).port == 5
    with pytest.raises(InvalidInput, match="NOETL_PORT: must be at most 65535, not 70000"):
        settings.read_settings(settings.ListenSettings, port=70_000)


def test_group_knows_what_was_given_and_cannot_be_changed(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("NOETL_SHARD_COUNT", "16")  # its default
    shards = settings.read_settings(settings.ShardSettings)
    assert shards.given_names == {"count"}
    longer = shards.replace(lease_sec=9.0)
    assert (longer.count, longer.lease_sec, shards.lease_sec) == (16, 9.0, 6.0)
    with pytest.raises(AttributeError):
        shards.count = 3  # type: ignore[misc]  # this is what is tested
    with pytest.raises(TypeError, match="ShardSettings has no counts"):
        settings.ShardSettings(counts=3)  # type: ignore[call-arg]  # this is what is tested


def test_secret_is_not_shown(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("NOETL_NATS_URL", "nats://user:password@host")
    url = settings.read_settings(settings.StorageSettings).nats_url
    assert url is not None
    assert url.reveal() == "nats://user:password@host"
    assert "password" not in f"{url} {url!r}"
