"""The data directory of Postgres. It is created once, complete or not at all.

It has two databases. The role of each cannot use the other's tables.

    home/postgres/
      data/            owned by the user that the server runs as
      passwords.json   of the roles noetl and noetl_data
      port             the last port, so that addresses survive a restart

No superuser can log in. Statements that need one run here, in the stand-alone server, before the
first start.
"""

import errno
import json
import os
import secrets
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from noetl.embedded.binaries import PostgresBinaries
from noetl.embedded.home import HomeUnusable, full, require_space
from noetl.embedded.process import Account, directory_name, run
from noetl.model.errors import Unavailable

CONTROL = "noetl"  # role and database of the control plane
DATA = "noetl_data"  # role and database of users' tables
SPACE_NEEDED = 96 << 20
STAGING = ".postgres-"
INITDB_OPTIONS = (
    "-U postgres -A reject -E UTF8 --locale=C --data-checksums --no-instructions --no-sync"
).split()
SINGLE_OPTIONS = "-c fsync=off -c exit_on_error=on -c log_checkpoints=off postgres".split()

ACCESS = f"""\
host  all     {CONTROL}  127.0.0.1/32  scram-sha-256
host  {DATA}  {DATA}     127.0.0.1/32  scram-sha-256
"""


@dataclass(frozen=True, slots=True)
class PostgresCluster:
    home: Path

    @property
    def directory(self) -> Path:
        return self.home / "postgres"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def major(self) -> int | None:
        """The major version of the Postgres that made the data. None if there are no data yet."""
        if not self.directory.exists():
            return None
        try:
            return int((self.data / "PG_VERSION").read_text())
        except (FileNotFoundError, ValueError) as broken:
            raise HomeUnusable(
                f"{self.data} is not a data directory of Postgres",
                hint=f"move {self.directory} away, or set NOETL_HOME",
            ) from broken

    def passwords(self) -> dict[str, str]:
        file = self.directory / "passwords.json"
        try:
            passwords: dict[str, str] = json.loads(file.read_bytes())
            return {role: passwords[role] for role in (CONTROL, DATA)}
        except (FileNotFoundError, ValueError, KeyError) as broken:
            raise HomeUnusable(
                f"{file} is missing or damaged: without it nobody can log in",
                hint=f"restore it, or move {self.directory} away to begin anew",
            ) from broken

    def last_port(self) -> int | None:
        try:
            return int((self.directory / "port").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def keep_port(self, port: int) -> None:
        if port != self.last_port():
            write_private(self.directory / "port", f"{port}\n")

    def create(self, runtime: PostgresBinaries, account: Account | None, *, synced: bool) -> None:
        """Create the data directory. The caller holds the lock of home."""
        for leftover in self.home.glob(f"{STAGING}*"):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        require_space(self.home, SPACE_NEEDED)
        staging = Path(tempfile.mkdtemp(dir=self.home, prefix=STAGING))
        try:
            passwords = {role: secrets.token_urlsafe(24) for role in (CONTROL, DATA)}
            write_private(staging / "passwords.json", json.dumps(passwords))
            self.fill(staging / "data", runtime, account, passwords)
            if synced:
                sync_tree(staging)
            staging.rename(self.directory)
            sync(self.home)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def fill(
        self,
        data: Path,
        runtime: PostgresBinaries,
        account: Account | None,
        passwords: dict[str, str],
    ) -> None:
        """Run `initdb`, then create the roles and databases in the stand-alone server."""
        data.mkdir(mode=0o700)
        own(data, account)
        descriptor = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
        try:
            place = ["-D", directory_name(data, descriptor, account)]
            self.do([runtime.program("initdb"), *place, *INITDB_OPTIONS], account, descriptor)

            access = data / "pg_hba.conf"
            access.write_text(ACCESS)
            own(access, account)
            command = [runtime.program("postgres"), "--single", *place, *SINGLE_OPTIONS]
            self.do(command, account, descriptor, statements(passwords, runtime.major))
        finally:
            os.close(descriptor)

    def do(
        self,
        command: list[str],
        account: Account | None,
        descriptor: int,
        text: str = "",
    ) -> None:
        """Run a program of Postgres. Raises HomeFull or Unavailable if it fails."""
        finished = run(command, account, descriptor=descriptor, text=text)
        if finished.code == 0:
            return
        complaint = finished.errors.strip() or finished.output.strip()
        for line in complaint.splitlines():
            if os.strerror(errno.ENOSPC) in line:
                raise full(self.home, line)
        raise Unavailable(
            f"could not make a database in {self.home}: {complaint}",
            hint="set NOETL_POSTGRES_BIN to another Postgres,"
            " or NOETL_DB_URL to a database of yours",
        )


def statements(passwords: dict[str, str], major: int) -> str:
    """The statements that create roles and databases, one per line for the stand-alone server.

    The connection limit of the users' role leaves connections to the control plane. Since Postgres
    17 the users' database knows upper and lower case beyond ASCII, whichever locales the machine
    has.
    """
    locale = ""
    if major >= 17:
        locale = "TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'"
    return f"""\
CREATE ROLE {CONTROL} LOGIN CREATEDB PASSWORD '{passwords[CONTROL]}' IN ROLE pg_monitor
CREATE ROLE {DATA} LOGIN CONNECTION LIMIT 60 PASSWORD '{passwords[DATA]}'
CREATE DATABASE {CONTROL} OWNER {CONTROL}
CREATE DATABASE {DATA} OWNER {DATA} {locale}
REVOKE ALL ON DATABASE {CONTROL}, {DATA}, postgres, template1 FROM PUBLIC
"""


def write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def sync_tree(directory: Path) -> None:
    """Sync many files at a time, so that they share commits of the file system. One after the other
    would take seconds."""
    paths = [directory]
    paths += [path for path in directory.rglob("*") if not path.is_symlink()]
    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(sync, paths):
            pass


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def own(path: Path, account: Account | None) -> None:
    """Make `account` the owner of the file."""
    if account is not None:
        os.chown(path, account.uid, account.gid)
