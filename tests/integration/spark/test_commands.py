"""`noetl spark` as its users have it."""

from pathlib import Path

from tests.stack import NoetlCommand


def test_status_and_doctor_know_a_server_of_others(spark_url: str, tmp_path: Path) -> None:
    noetl, named = (
        NoetlCommand(tmp_path).with_env(NOETL_SPARK_PROFILE=spark_url),
        spark_url.partition(";")[0],
    )
    assert {found["check"]: found["status"] for found in noetl.json("spark", "doctor")} == {
        "pyspark": "ok",
        "server": "ok",
    }
    status = noetl("spark", "status")
    assert (status.code, status.out.startswith(f"profile {named}: "), "token" in status.out) == (
        1,
        True,
        False,
    )
    wrong = noetl.with_env(NOETL_SPARK_PROFILE=f"{spark_url}x")("spark", "doctor")
    assert (
        wrong.code,
        "UNAUTHENTICATED" in wrong.out,
        spark_url.rpartition("=")[2] in wrong.out,
    ) == (1, True, False)


def test_a_setting_that_is_wrong_is_said(tmp_path: Path) -> None:
    for command in ("status", "doctor"):
        refused = NoetlCommand(tmp_path).with_env(NOETL_SPARK_IDLE_SEC="abc")("spark", command)
        assert (refused.code, "NOETL_SPARK_IDLE_SEC" in refused.err) == (2, True)
