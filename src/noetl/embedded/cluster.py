"""The data directory of Postgres. It is created once, complete or not at all.

It has two databases. The role of each cannot use the other's tables. Servers work as a third role, which
may not change what they have appended to the log: the role of the control plane migrates and compacts.

    home/postgres/
      data/            owned by the user that the server runs as
      passwords.json   of the roles noetl, noetl_app and noetl_data
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
from pathlib import Path

from msgspec import Struct

from noetl.embedded.binaries import PostgresBinaries
from noetl.embedded.home import HomeUnusable, make_home_full, require_space
from noetl.embedded.process import Account, get_directory_name, run
from noetl.model.errors import Unavailable
from noetl.postgres.roles import APP_ROLE

CONTROL_ROLE = "noetl"  # role and database of the control plane
DATA_ROLE = "noetl_data"  # role and database of users' tables
MIN_CLUSTER_BYTES = 96 << 20
STAGING_PREFIX = ".postgres-"
INITDB_OPTIONS = (
    "-U postgres -A reject -E UTF8 --locale=C --data-checksums --no-instructions --no-sync"
).split()
SINGLE_OPTIONS = "-c exit_on_error=on -c log_checkpoints=off postgres".split()
UNSYNCED_OPTIONS = ("-c", "fsync=off")  # for a new directory, which is synced when it is complete

HBA_RULES = f"""\
host  all     {CONTROL_ROLE}  127.0.0.1/32  scram-sha-256
host  {DATA_ROLE}  {DATA_ROLE}     127.0.0.1/32  scram-sha-256
"""
APP_HBA_RULE = f"host  {CONTROL_ROLE}  {APP_ROLE}  127.0.0.1/32  scram-sha-256\n"


class PostgresCluster(Struct, frozen=True):
    home: Path

    @property
    def directory(self) -> Path:
        return self.home / "postgres"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def read_major(self) -> int | None:
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

    @property
    def passwords_file(self) -> Path:
        return self.directory / "passwords.json"

    def read_passwords(self) -> dict[str, str]:
        """The passwords by role. A home of an older NoETL has none for `APP_ROLE` until it is started."""
        file = self.passwords_file
        try:
            passwords: dict[str, str] = json.loads(file.read_bytes())
            needed = {role: passwords[role] for role in (CONTROL_ROLE, DATA_ROLE)}
            return {**passwords, **needed}
        except (FileNotFoundError, ValueError, KeyError) as broken:
            raise HomeUnusable(
                f"{file} is missing or damaged: without it nobody can log in",
                hint=f"restore it, or move {self.directory} away to start with a new database",
            ) from broken

    def read_last_port(self) -> int | None:
        try:
            return int((self.directory / "port").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def keep_port(self, port: int) -> None:
        if port != self.read_last_port():
            write_private(self.directory / "port", f"{port}\n")

    def create(
        self,
        runtime: PostgresBinaries,
        account: Account | None,
        *,
        synced: bool,
    ) -> None:
        """Create the data directory. The caller holds the lock of home."""
        for leftover in self.home.glob(f"{STAGING_PREFIX}*"):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        require_space(self.home, MIN_CLUSTER_BYTES)
        staging = Path(tempfile.mkdtemp(dir=self.home, prefix=STAGING_PREFIX))
        try:
            passwords = {role: make_password() for role in (CONTROL_ROLE, APP_ROLE, DATA_ROLE)}
            write_private(staging / "passwords.json", json.dumps(passwords))
            self.fill_data_directory(staging / "data", runtime, account, passwords)
            if synced:
                sync_tree(staging)
            staging.rename(self.directory)
            sync_file(self.home)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def fill_data_directory(
        self,
        data: Path,
        runtime: PostgresBinaries,
        account: Account | None,
        passwords: dict[str, str],
    ) -> None:
        """Run `initdb`, then create the roles and databases in the stand-alone server."""
        data.mkdir(mode=0o700)
        give_to_account(data, account)
        descriptor = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
        try:
            place = ["-D", get_directory_name(data, descriptor, account)]
            self.run_program(
                [runtime.get_program("initdb"), *place, *INITDB_OPTIONS], account, descriptor
            )

            access = data / "pg_hba.conf"
            access.write_text(HBA_RULES + APP_HBA_RULE)
            give_to_account(access, account)
            command = [runtime.get_program("postgres"), "--single", *place]
            statements = make_setup_statements(passwords, runtime.major)
            statements += make_app_role_statements(passwords[APP_ROLE])
            self.run_program(
                [*command, *UNSYNCED_OPTIONS, *SINGLE_OPTIONS], account, descriptor, statements
            )
        finally:
            os.close(descriptor)

    def add_app_role(
        self, runtime: PostgresBinaries, account: Account | None, descriptor: int
    ) -> None:
        """Make the role of servers in a data directory that an older NoETL has made.

        The caller holds the lock of the directory, and no server runs. The password is written last: if
        this is interrupted, the next start does it again.
        """
        access = self.data / "pg_hba.conf"
        rules = access.read_text()
        if APP_HBA_RULE not in rules:
            access.write_text(f"{rules.rstrip()}\n{APP_HBA_RULE}")
        passwords = {**self.read_passwords(), APP_ROLE: make_password()}
        place = ["-D", get_directory_name(self.data, descriptor, account)]
        command = [runtime.get_program("postgres"), "--single", *place, *SINGLE_OPTIONS]
        statements = make_app_role_statements(passwords[APP_ROLE])
        self.run_program(command, account, descriptor, statements)
        staged = self.passwords_file.with_suffix(".new")
        write_private(staged, json.dumps(passwords))
        sync_file(staged)
        staged.replace(self.passwords_file)
        sync_file(self.directory)

    def run_program(
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
                raise make_home_full(self.home, line)
        raise Unavailable(
            f"could not make a database in {self.home}: {complaint}",
            hint="set NOETL_POSTGRES_BIN to another Postgres,"
            " or NOETL_DB_URL to a database of yours",
        )


def make_setup_statements(passwords: dict[str, str], major: int) -> str:
    """The statements that create roles and databases, one per line for the stand-alone server.

    The connection limit of the users' role leaves connections to the control plane. Since Postgres
    17 the users' database knows upper and lower case beyond ASCII, whichever locales the machine
    has.
    """
    locale = ""
    if major >= 17:
        locale = "TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'"
    return f"""\
CREATE ROLE {CONTROL_ROLE} LOGIN CREATEDB PASSWORD '{passwords[CONTROL_ROLE]}' IN ROLE pg_monitor
CREATE ROLE {DATA_ROLE} LOGIN CONNECTION LIMIT 60 PASSWORD '{passwords[DATA_ROLE]}'
CREATE DATABASE {CONTROL_ROLE} OWNER {CONTROL_ROLE}
CREATE DATABASE {DATA_ROLE} OWNER {DATA_ROLE} {locale}
REVOKE ALL ON DATABASE {CONTROL_ROLE}, {DATA_ROLE}, postgres, template1 FROM PUBLIC
"""


def make_app_role_statements(password: str) -> str:
    """The statements that make the role of servers, or give it this password if it is there. The
    control role may take its place, for other databases of the same server."""
    return f"""\
DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{APP_ROLE}') THEN CREATE ROLE {APP_ROLE}; END IF; END $$
ALTER ROLE {APP_ROLE} LOGIN PASSWORD '{password}'
GRANT {APP_ROLE} TO {CONTROL_ROLE}
GRANT CONNECT ON DATABASE {CONTROL_ROLE} TO {APP_ROLE}
"""


def make_password() -> str:
    return secrets.token_urlsafe(24)


def write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def sync_tree(directory: Path) -> None:
    """Sync many files at a time, so that they share commits of the file system. One after the other
    would take seconds."""
    paths = [directory]
    paths += [path for path in directory.rglob("*") if not path.is_symlink()]
    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(sync_file, paths):
            pass


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_to_account(path: Path, account: Account | None) -> None:
    """Make `account` the owner of the file."""
    if account is not None:
        os.chown(path, account.uid, account.gid)
