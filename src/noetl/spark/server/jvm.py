"""The command line of a Spark Connect server: class path, memory, settings and class archive.

The archive (AppCDS) holds loaded classes as the JVM has them in memory; with it a start takes half
as long. The first server records which classes it loads, which costs nothing. When it has ended,
a process of low priority makes the archive from this list, in the cache folder of the user. Every
combination of Java, Spark and class path has its own archive; the last few used ones are kept.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from noetl.model.errors import Unavailable
from noetl.spark.profiles import LOOPBACK, SparkProfile, find_local_address
from noetl.spark.server.java import Java

GB = 1 << 30
MAX_ARCHIVES = 3  # archives, of some 200 MB each
ABANDONED_AFTER_S = 86_400  # seconds after which no process can still be making an archive
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
# Spark's own launcher opens these packages. It also opens a module that trimmed Javas lack and
# that Spark does not need.
_OPENED_PACKAGES = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent "
    "java.util.concurrent.atomic jdk.internal.ref sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
)
JVM_OPTIONS = (
    # High thresholds for the optimizing compiler: it would make the start half as long again, and
    # it pays only for code that runs much longer than that.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+ExitOnOutOfMemoryError",  # the JVM is useless then, and the next one starts at once
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES.split()),
)


_QUIET_OPTIONS = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


@dataclass(frozen=True, slots=True)
class Machine:
    cores: int
    memory: int

    @property
    def heap_bytes(self) -> int:
        """Bytes of the heap: a quarter of the memory, at most 16 GB and at least 1 GB, but not more
        than half of the memory of a small machine."""
        least = min(GB, self.memory // 2)
        quarter = min(self.memory // 4, 16 * GB)
        return max(quarter, least)


def measure_machine() -> Machine:
    """The cores and the memory that this process may use."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            memory = min(memory, int(Path(limit).read_text()))
        except (OSError, ValueError):
            continue
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0)) or 1
    return Machine(cores, memory)


def find_spark_home() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise Unavailable("PySpark is not installed", hint="pip install 'pyspark[connect]'")
    return Path(found.origin).parent


def make_server_conf(
    size: Machine,
    folder: Path,
    log: Path,
    port: int,
    master: str | None,
) -> dict[str, str]:
    """The settings of the server. A playbook changes settings of its session by `conf`."""
    host = find_local_address(SparkProfile(master=master))
    secured = {}
    if master is None:
        # Without it the driver deserialises Java objects that any process of this machine sends to
        # it. The JVM makes the secret itself; a cluster has its own.
        secured = {"spark.authenticate": "true"}
    return {
        **secured,
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
        # Spark does not preempt tasks. With small tasks a short query waits a second or two for
        # tasks of a long one, not minutes.
        "spark.sql.files.maxPartitionBytes": str(32 << 20),
        "spark.sql.shuffle.partitions": str(4 * size.cores),
        # Parquet that other programs read well: timestamps as instants, and row groups small
        # enough that reading one row is cheap.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.hadoop.parquet.block.size": str(16 << 20),
        "log4j2.configurationFile": LOG_SETTINGS.as_uri(),
        "noetl.spark.log": str(log),
        # Files appear when the job is committed, not task by task.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    }


def make_jvm_command(
    java: Java,
    size: Machine,
    conf: dict[str, str],
    archives: Path,
    more: str = "",
) -> list[str]:
    """The command that starts the server. `more` holds options of the user for Java."""
    return [
        str(java.program),
        f"-Xmx{size.heap_bytes >> 20}m",
        _choose_collector(size),
        *_make_archive_options(java, archives),
        *JVM_OPTIONS,
        *more.split(),
        *(f"-D{name}={value}" for name, value in conf.items()),
        "-cp",
        _make_class_path(),
        MAIN_CLASS,
    ]


def _choose_collector(size: Machine) -> str:
    return "-XX:+UseSerialGC" if size.cores <= 2 else "-XX:+UseParallelGC"


def _make_class_path() -> str:
    jars = sorted((find_spark_home() / "jars").glob("*.jar"))
    return ":".join(str(jar) for jar in jars)


# ---- the archive -----------------------------------------------------------------------------------------------------------


def archive_path(java: Java, archives: Path) -> Path:
    """The path of the archive for this Java, Spark and class path."""
    key = f"{java.program.resolve()}\n{java.version}\n{_make_class_path()}"
    digest = sha256(key.encode()).hexdigest()
    return archives / f"spark-{digest[:16]}.jsa"


def class_list_path(java: Java, archives: Path) -> Path:
    """The file in which the JVM of this process lists its loaded classes."""
    return archive_path(java, archives).with_suffix(f".{os.getpid()}.classes")


def _make_archive_options(java: Java, archives: Path) -> list[str]:
    """The options that use the archive, or record the classes for it if there is none.

    The JVM ignores an archive that does not fit.
    """
    file = archive_path(java, archives)
    if file.exists():
        with suppress(OSError):
            os.utime(file)  # the last used archives are kept
        return ["-Xshare:auto", f"-XX:SharedArchiveFile={file}", *_QUIET_OPTIONS]
    archives.mkdir(mode=0o700, parents=True, exist_ok=True)
    return [
        "-Xshare:auto",
        f"-XX:DumpLoadedClassList={class_list_path(java, archives)}",
        *_QUIET_OPTIONS,
    ]


def make_archive_command(java: Java, size: Machine, archives: Path) -> list[str]:
    """The command that makes the archive from the recorded classes."""
    return [
        str(java.program),
        "-Xshare:dump",
        _choose_collector(size),
        f"-XX:SharedClassListFile={class_list_path(java, archives)}",
        f"-XX:SharedArchiveFile={_partial_archive_path(java, archives)}",
        *_QUIET_OPTIONS,
        "-cp",
        _make_class_path(),
    ]


def _partial_archive_path(java: Java, archives: Path) -> Path:
    return class_list_path(java, archives).with_suffix(".part")


def keep_archive(java: Java, archives: Path) -> None:
    """Give the complete archive its final name."""
    _partial_archive_path(java, archives).rename(archive_path(java, archives))


def delete_class_list(java: Java, archives: Path) -> None:
    """Delete the list of classes of this process, and an incomplete archive."""
    for file in (class_list_path(java, archives), _partial_archive_path(java, archives)):
        file.unlink(missing_ok=True)


def delete_old_archives(archives: Path, now: float) -> None:
    """Delete the least recently used archives, and files of processes that were killed.

    The caller holds the lock of the archives.
    """
    made = sorted(
        archives.glob("spark-*.jsa"),
        key=lambda file: file.stat().st_mtime,
        reverse=True,
    )
    leftovers = [*archives.glob("spark-*.classes"), *archives.glob("spark-*.part")]
    abandoned = [file for file in leftovers if now - file.stat().st_mtime > ABANDONED_AFTER_S]
    for file in (*made[MAX_ARCHIVES:], *abandoned):
        file.unlink(missing_ok=True)
