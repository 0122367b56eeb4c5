"""The command line of a Spark Connect server: its class path, memory by the size of the machine, and its archive.

The archive (AppCDS) holds classes as the JVM has them in memory; with it a start takes half as long. The first server that runs
writes it when it ends, into the user's cache; any other Java, Spark or class path has another one.
"""

import os
import socket
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from noetl.model.errors import Unavailable
from noetl.spark.java import Java

GB = 1 << 30
LOOPBACK = "127.0.0.1"
PORT = 7077  # of a master that does not say
MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
# What Spark's own launcher gives every JVM of it, but for a module that trimmed Javas lack and Spark does without.
_OPENS = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent "
    "java.util.concurrent.atomic jdk.internal.ref sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
)
OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+ExitOnOutOfMemoryError",  # what is left then is of no use, and the next one starts at once
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS.split()),
)


@dataclass(frozen=True, slots=True)
class Machine:
    cores: int
    memory: int

    @property
    def heap(self) -> int:
        """A quarter of the memory, at least 1 GB (half of it on a small machine) and at most 16 GB."""
        return max(min(self.memory // 4, 16 * GB), min(GB, self.memory // 2))


def machine() -> Machine:
    """As far as this process may use it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            memory = min(memory, int(Path(limit).read_text()))
        except (OSError, ValueError):
            continue
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(cores or 1, memory)


def spark_home() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise Unavailable("PySpark is not installed", hint="pip install 'pyspark[connect]'")
    return Path(found.origin).parent


def towards(master: str) -> str:
    """The address of this machine by which a cluster reaches it; nothing is sent."""
    first = urlsplit(master.partition(",")[0])
    try:
        kind, *_, address = socket.getaddrinfo(first.hostname, first.port or PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            host: str = probe.getsockname()[0]
            return host
    except OSError as error:
        raise Unavailable(
            f"{master} cannot be reached: {error.strerror or error}", hint="NOETL_SPARK_PROFILE names it"
        ) from error


def settings(size: Machine, folder: Path, port: int, master: str | None) -> dict[str, str]:
    """Of the server; what a playbook may change in its session is for `conf`."""
    host = LOOPBACK if master is None else towards(master)
    return {
        "spark.master": master or f"local[{size.cores}]",
        "spark.app.name": "noetl",
        "spark.ui.enabled": "false",
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.progress.reportInterval": "1s",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.scheduler.mode": "FAIR",
        # tasks are not preempted: with small ones a short query waits a second or two for a long one's, not minutes
        "spark.sql.files.maxPartitionBytes": str(32 << 20),
        "spark.sql.shuffle.partitions": str(4 * size.cores),
        # Parquet that others read well: moments as such, and groups small enough that one row is not far
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.hadoop.parquet.block.size": str(16 << 20),
        # files appear when the job is committed, not task by task
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    }


def command(java: Java, size: Machine, conf: dict[str, str], archives: Path, more: str = "") -> list[str]:
    jars = ":".join(str(jar) for jar in sorted((spark_home() / "jars").glob("*.jar")))
    return [
        str(java.program),
        f"-Xmx{size.heap >> 20}m",
        "-XX:+UseSerialGC" if size.cores <= 2 else "-XX:+UseParallelGC",
        *_archive(java, jars, archives),
        *OPTIONS,
        *more.split(),
        *(f"-D{name}={value}" for name, value in conf.items()),
        "-cp",
        jars,
        MAIN,
    ]


def archive(java: Java, jars: str, archives: Path) -> Path:
    key = sha256(f"{java.program.resolve()}\n{java.version}\n{jars}".encode()).hexdigest()[:16]
    return archives / f"spark-{key}.jsa"


def _archive(java: Java, jars: str, archives: Path) -> list[str]:
    """Written by the first JVM that ends in order, used by the others. One that does not fit is passed over by the JVM."""
    file = archive(java, jars, archives)
    quiet = ["-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off"]
    if file.exists():
        return [f"-XX:SharedArchiveFile={file}", *quiet]
    archives.mkdir(mode=0o700, parents=True, exist_ok=True)
    return [f"-XX:ArchiveClassesAtExit={file}.{os.getpid()}", *quiet]


def keep_archive(java: Java, archives: Path) -> None:
    """After the JVM that wrote one has ended: under its name, whole."""
    jars = ":".join(str(jar) for jar in sorted((spark_home() / "jars").glob("*.jar")))
    file = archive(java, jars, archives)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    if part.exists():
        part.rename(file)
