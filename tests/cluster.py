"""A standalone Spark cluster on loopback: a master and workers of one core each, on addresses of their own, as machines are.

Its processes are those of the PySpark that is installed; executors are started by the workers.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from noetl.spark.server import jvm
from noetl.spark.server.java import find_java
from tests.processes import free_port
from tests.waiting import until

DEPLOY = "org.apache.spark.deploy"
# Quick to start, and without a module that trimmed Javas lack and Spark's own launcher asks for.
JAVA = """#!/bin/bash
for each; do shift; [ "$each" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$each"; done
exec {java} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "$@"
"""


@dataclass
class SparkMachine:
    """A master or a worker with its executors."""

    process: "subprocess.Popen[bytes]"
    log: Path
    work: Path

    def kill(self) -> None:
        """All of it at once, as when its power is cut."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class SparkCluster:
    folder: Path
    url: str
    java: Path
    machines: list[SparkMachine] = field(default_factory=list)

    @property
    def profile(self) -> str:
        return f"cluster:{self.url}"

    def worker_of(self, folder: str) -> SparkMachine:
        """The worker with the task that works in this folder."""
        (found,) = [each for each in self.machines if Path(folder).is_relative_to(each.work)]
        return found

    def start(self, name: str, host: str, main: str, *arguments: str) -> SparkMachine:
        log, work = self.folder / f"{name}.log", self.folder / name
        work.mkdir()
        home = {
            "HOME": str(self.folder),
            "JAVA_HOME": str(self.java),
            "SPARK_HOME": str(jvm.find_spark_home()),
        }
        place = {
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(work),
            "SPARK_SCALA_VERSION": "2.13",
        }
        command = [
            str(self.java / "bin" / "java"),
            "-Xmx256m",
            *jvm.JVM_OPTIONS,
            "-cp",
            _jars(),
            main,
        ]
        command += ["--host", host, "--webui-port", "0", *arguments]
        with log.open("wb") as said:
            process = subprocess.Popen(
                command, env={"PATH": os.environ["PATH"], **home, **place}, cwd=work,
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip
        self.machines.append(SparkMachine(process, log, work))
        return self.machines[-1]


@contextmanager
def run_spark_cluster(folder: Path, workers: int = 2) -> Iterator[SparkCluster]:
    folder.mkdir()
    port = free_port()
    made = SparkCluster(folder, f"spark://127.0.0.1:{port}", _java_home(folder))
    size = ("--cores", "1", "--memory", "600m")
    try:
        master = made.start("master", "127.0.0.1", f"{DEPLOY}.master.Master", "--port", str(port))
        for number in range(1, workers + 1):
            name, host = f"worker{number}", f"127.0.0.{number + 1}"
            made.start(
                name,
                host,
                f"{DEPLOY}.worker.Worker",
                *size,
                "--work-dir",
                str(folder / name),
                made.url,
            )
        until(lambda: master.log.read_bytes().count(b"Registering worker") == workers)
        yield made
    finally:
        for machine in made.machines:
            if machine.process.poll() is None:
                machine.kill()


def _jars() -> str:
    return ":".join(str(jar) for jar in sorted((jvm.find_spark_home() / "jars").glob("*.jar")))


def _java_home(folder: Path) -> Path:
    program = folder / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(JAVA.format(java=find_java().program))
    program.chmod(0o755)
    return program.parents[1]
