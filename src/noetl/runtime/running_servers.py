"""Which servers of this machine run on a home, and at which addresses.

Every server process locks a file in its home (`server_locks.py`). The file says where the server
listens, so that commands can lead users to its page.
"""

import hashlib
from pathlib import Path

from noetl.runtime.lock_files import LockContent, list_live_files
from noetl.settings import DatabaseSettings, HomeSettings, read_settings

FOLDER = "servers"


class LockedServer(LockContent, frozen=True, kw_only=True):
    """`runtime_id` is a number of this database. `address` is None if it answers no requests.

    `certificate` is the file of the certificate of a server with TLS.
    """

    database: str
    runtime_id: int
    address: str | None = None
    database_setting: str = ""
    certificate: str | None = None


def identify_database_setting() -> str:
    """A sum of the address of the database in the settings: servers of one home may have several."""
    address = read_settings(DatabaseSettings).db_url
    if address is None:
        return ""
    return hashlib.sha256(address.reveal().encode()).hexdigest()


def find_server_address() -> str | None:
    """The server of the settings, else the newest that runs on the same home and database."""
    place = read_settings(HomeSettings)
    if place.server_urls:
        return place.server_urls[0]
    return find_local_address(place.home_path, identify_database_setting())


def find_local_address(home: Path, database_setting: str) -> str | None:
    newest: tuple[int, str] | None = None
    for file, server in list_live_files(home / FOLDER, LockedServer):
        if server.address is None or server.database_setting != database_setting:
            continue
        try:
            began_ns = file.stat().st_mtime_ns
        except OSError:  # it has just ended
            continue
        newest = max(newest or (0, ""), (began_ns, server.address))
    return None if newest is None else newest[1]


def list_local_addresses(home: Path) -> list[str]:
    """The addresses of all servers that run on this home, with any database."""
    live = list_live_files(home / FOLDER, LockedServer)
    return [server.address for _, server in live if server.address is not None]
