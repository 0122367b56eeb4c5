"""Variables of the environment that change nothing are said at the start of a process."""

import signal

from tests.stack import NoetlCommand


def test_run_warns_of_settings_that_do_not_exist_and_of_another_number_of_shards(
    noetl: NoetlCommand,
) -> None:
    first = noetl("run", "examples/hello.yaml", "--json")
    assert (first.code, first.err) == (0, "")
    odd = noetl.with_env(
        NOETL_SHARD_COUNT="3",
        NOETL_SHARD_LEASE_SECS="7",
        NOETL_NOTHING_LIKE_IT="1",
        NOETL_ENV_X="1",
    )
    done = odd("run", "examples/hello.yaml", "--json")
    assert done.json["status"] == "completed"
    assert "warning: NOETL_SHARD_LEASE_SECS is set, and no setting has that name" in done.err
    assert "did you mean NOETL_SHARD_LEASE_SEC?" in done.err
    assert "NOETL_NOTHING_LIKE_IT is set" in done.err
    assert "docs/settings.md" in done.err
    assert "NOETL_ENV_X" not in done.err
    assert "warning: NOETL_SHARD_COUNT is 3, and the database was made with 16 shards" in done.err


def test_worker_warns_of_settings_that_do_not_exist(noetl: NoetlCommand) -> None:
    process = noetl.with_env(NOETL_WORKER_SLOT="2", NOETL_SERVER_URL="http://127.0.0.1:9").start(
        "worker", "start"
    )
    assert process.stdout is not None
    process.stdout.readline()  # it names its server, after the warnings
    process.send_signal(signal.SIGTERM)
    done = noetl.wait(process)
    assert "warning: NOETL_WORKER_SLOT is set, and no setting has that name" in done.err
    assert "did you mean NOETL_WORKER_SLOTS?" in done.err
