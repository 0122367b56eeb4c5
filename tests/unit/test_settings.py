"""Variables that nothing reads."""

from noetl import settings


def test_every_setting_is_known_and_so_are_variables_of_other_uses() -> None:
    known = [
        settings.variable_name(concern, field)
        for concern in settings.SETTINGS_GROUPS
        for field in concern.model_fields
    ]
    others = [
        "NOETL_CREDENTIAL_PG",
        "NOETL_SECRET_KEY",
        "NOETL_SECRETS_DIR",
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
