"""The command line of a Spark Connect server: its class path, memory by the size of the machine, and its archive.

The archive (AppCDS) holds classes as the JVM has them in memory; with it a start takes half as long. The first server notes which
classes it loads, which costs nothing; when it has ended, the archive is made of them, in the user's cache and in time that nobody
else wants. Any other Java, Spark or class path has another one; the last few that were used are kept.
"""

import os
import socket
from contextlib import suppress
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
KEPT = 3  # archives, of some 200 MB each
ABANDONED = 86_400  # seconds after which nobody is making an archive any more
MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
# What Spark's own launcher gives every JVM of it, but for a module that trimmed Javas lack and Spark does without.
_OPENS = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent "
    "java.util.concurrent.atomic jdk.internal.ref sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
)
OPTIONS = (
    # compiling well is for what runs much longer than a start, which it would make half as long again
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
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


_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


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
        kind, *_, address = socket.getaddrinfo(
            first.hostname, first.port or PORT, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            host: str = probe.getsockname()[0]
            return host
    except OSError as error:
        raise Unavailable(
            f"{master} cannot be reached: {error.strerror or error}",
            hint="NOETL_SPARK_PROFILE names it",
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


def command(
    java: Java, size: Machine, conf: dict[str, str], archives: Path, more: str = ""
) -> list[str]:
    return [
        str(java.program),
        f"-Xmx{size.heap >> 20}m",
        _collector(size),
        *_archive(java, archives),
        *OPTIONS,
        *more.split(),
        *(f"-D{name}={value}" for name, value in conf.items()),
        "-cp",
        _jars(),
        MAIN,
    ]


def _collector(size: Machine) -> str:
    return "-XX:+UseSerialGC" if size.cores <= 2 else "-XX:+UseParallelGC"


def _jars() -> str:
    return ":".join(str(jar) for jar in sorted((spark_home() / "jars").glob("*.jar")))


# ---- the archive -----------------------------------------------------------------------------------------------------------


def archive(java: Java, archives: Path) -> Path:
    key = sha256(f"{java.program.resolve()}\n{java.version}\n{_jars()}".encode()).hexdigest()[:16]
    return archives / f"spark-{key}.jsa"


def loaded(java: Java, archives: Path) -> Path:
    """Where the JVM that this process started notes its classes."""
    return archive(java, archives).with_suffix(f".{os.getpid()}.classes")


def _archive(java: Java, archives: Path) -> list[str]:
    """One that does not fit is passed over by the JVM."""
    file = archive(java, archives)
    if file.exists():
        with suppress(OSError):
            os.utime(file)  # used today
        return ["-Xshare:auto", f"-XX:SharedArchiveFile={file}", *_QUIET]
    archives.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ["-Xshare:auto", f"-XX:DumpLoadedClassList={loaded(java, archives)}", *_QUIET]


def archiving(java: Java, size: Machine, archives: Path) -> list[str]:
    """What makes the archive of the classes that were noted."""
    return [
        str(java.program),
        "-Xshare:dump",
        _collector(size),
        f"-XX:SharedClassListFile={loaded(java, archives)}",
        f"-XX:SharedArchiveFile={_part(java, archives)}",
        *_QUIET,
        "-cp",
        _jars(),
    ]


def _part(java: Java, archives: Path) -> Path:
    return loaded(java, archives).with_suffix(".part")


def keep_archive(java: Java, archives: Path) -> None:
    """The one that was made: under its name, whole."""
    _part(java, archives).rename(archive(java, archives))


def forget_loaded(java: Java, archives: Path) -> None:
    """What an archive was made from, or was to be."""
    for file in (loaded(java, archives), _part(java, archives)):
        file.unlink(missing_ok=True)


def tidy(archives: Path, now: float) -> None:
    """Those that were not used for longest go, and what was left by processes that were killed. Under the lock of archives."""
    made = sorted(archives.glob("spark-*.jsa"), key=lambda file: file.stat().st_mtime, reverse=True)
    left = [file for end in ("classes", "part") for file in archives.glob(f"spark-*.{end}")]
    for file in (*made[KEPT:], *(file for file in left if now - file.stat().st_mtime > ABANDONED)):
        file.unlink(missing_ok=True)
