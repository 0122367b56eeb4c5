"""The data directory: made once, whole or not at all, with two databases whose roles know nothing of each other.

    home/postgres/
      data/            owned by the user that the server runs as
      passwords.json   of the roles noetl and noetl_data
      port             the last one used, so that addresses survive a restart

No superuser can log in: what needs one is done here, before the first start, without a server.
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

CONTROL, DATA = "noetl", "noetl_data"
SPACE_NEEDED = 96 << 20
STAGING = ".postgres-"

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
        """Of the Postgres that made it; None when there is none yet."""
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
            found: dict[str, str] = json.loads(file.read_bytes())
            return {role: found[role] for role in (CONTROL, DATA)}
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
        """Under the lock of home."""
        for leftover in self.home.glob(f"{STAGING}*"):  # of one that was killed
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
        data.mkdir(mode=0o700)
        own(data, account)
        opened = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
        try:
            place = ["-D", directory_name(data, opened, account)]
            make = "-U postgres -A reject -E UTF8 --locale=C --data-checksums --no-instructions --no-sync".split()
            self.do([runtime.program("initdb"), *place, *make], account, opened)

            access = data / "pg_hba.conf"
            access.write_text(ACCESS)
            own(access, account)
            alone = "-c fsync=off -c exit_on_error=on -c log_checkpoints=off postgres".split()
            command = [runtime.program("postgres"), "--single", *place, *alone]
            self.do(command, account, opened, statements(passwords, runtime.major))
        finally:
            os.close(opened)

    def do(self, command: list[str], account: Account | None, opened: int, text: str = "") -> None:
        done = run(command, account, opened=opened, text=text)
        if done.code == 0:
            return
        said = done.errors.strip() or done.output.strip()
        for line in said.splitlines():
            if os.strerror(errno.ENOSPC) in line:
                raise full(self.home, line)
        raise Unavailable(
            f"could not make a database in {self.home}: {said}",
            hint="set NOETL_POSTGRES_BIN to another Postgres, or NOETL_DB_URL to a database of yours",
        )


def statements(passwords: dict[str, str], major: int) -> str:
    """One a line, as the stand-alone server reads them.

    The role of the users' tables leaves connections to the control plane. Where Postgres can, its database knows upper and
    lower case beyond ASCII without depending on the machine's locales.
    """
    letters = (
        "TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'" if major >= 17 else ""
    )
    return f"""\
CREATE ROLE {CONTROL} LOGIN CREATEDB PASSWORD '{passwords[CONTROL]}' IN ROLE pg_monitor
CREATE ROLE {DATA} LOGIN CONNECTION LIMIT 60 PASSWORD '{passwords[DATA]}'
CREATE DATABASE {CONTROL} OWNER {CONTROL}
CREATE DATABASE {DATA} OWNER {DATA} {letters}
REVOKE ALL ON DATABASE {CONTROL}, {DATA}, postgres, template1 FROM PUBLIC
"""


def write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def sync_tree(directory: Path) -> None:
    """Many at a time: they share the file system's commits, where one after the other takes seconds."""
    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(
            sync, [directory, *(path for path in directory.rglob("*") if not path.is_symlink())]
        ):
            pass


def sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def own(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, account.uid, account.gid)
