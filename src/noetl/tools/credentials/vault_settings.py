"""How a worker reaches Vault: the variables `NOETL_VAULT_*` of its environment.

| variable | meaning |
|---|---|
| `NOETL_VAULT_ADDR` | the address; https, or http on this machine |
| `NOETL_VAULT_TOKEN_FILE`, `NOETL_VAULT_TOKEN` | a token; the file is read again when the token is refused |
| `NOETL_VAULT_ROLE_ID`, `NOETL_VAULT_SECRET_ID_FILE`, `NOETL_VAULT_APPROLE_MOUNT` | login by AppRole |
| `NOETL_VAULT_NAMESPACE` | the namespace |
| `NOETL_VAULT_PATHS` | the beginnings of paths that playbooks may read, separated by commas (secret/) |
| `NOETL_VAULT_CACERT` | a file with the certificate of the authority |
| `NOETL_VAULT_TIMEOUT_SEC`, `NOETL_VAULT_CACHE_SEC` | seconds for one request (10), and for a secret in memory (60) |
"""

import ssl
from collections.abc import Mapping
from pathlib import Path

import httpx
from msgspec import Struct

from noetl.model.errors import InvalidInput

DEFAULT_TIMEOUT_S = 10.0
DEFAULT_CACHE_S = 60.0
MAX_CACHE_S = 3_600.0
MAX_TOKEN_FILE_BYTES = 64 * 1024
LOOPBACK_HOSTS = frozenset(("localhost", "127.0.0.1", "::1"))


class VaultSettings(Struct, frozen=True):
    address: str
    namespace: str = ""
    token: str = ""
    token_file: str = ""
    role_id: str = ""
    secret_id_file: str = ""
    approle_mount: str = "approle"
    paths: tuple[str, ...] = ("secret",)
    ca_file: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S
    cache_s: float = DEFAULT_CACHE_S

    def check_path(self, path: str) -> None:
        """Raise InvalidInput if playbooks may not read this path."""
        segments = path.split("/")
        if any(segment in ("", ".", "..") for segment in segments) or not path.isprintable():
            raise InvalidInput(
                f"{path[:200]!r} is no path of a secret in Vault", hint="for example secret/data/db"
            )
        if any(character in path for character in "?%\\"):
            raise InvalidInput(f"a path in Vault has none of ? % \\, and {path[:200]!r} has")
        if not any(f"{path}/".startswith(f"{prefix}/") for prefix in self.paths):
            raise InvalidInput(
                f"playbooks may not read {path[:200]!r} in Vault, only what is below {', '.join(self.paths)}",
                hint="the operator of the worker names other paths in NOETL_VAULT_PATHS",
            )

    def make_ssl_context(self) -> ssl.SSLContext | bool:
        if self.address.startswith("http://"):
            return False  # making a context takes a while
        if not self.ca_file:
            return True
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput(
                f"NOETL_VAULT_CACERT cannot be used: {type(error).__name__}"
            ) from None

    def read_token(self) -> str:
        if self.token_file:
            return _read_line("NOETL_VAULT_TOKEN_FILE", self.token_file)
        return self.token

    def read_secret_id(self) -> str:
        return _read_line("NOETL_VAULT_SECRET_ID_FILE", self.secret_id_file)


def read_vault_settings(environment: Mapping[str, str]) -> VaultSettings:
    """The settings of the worker. Raises InvalidInput that names the variable to set."""

    def get(name: str, default: str = "") -> str:
        return environment.get(f"NOETL_VAULT_{name}", "").strip() or default

    settings = VaultSettings(
        address=_check_address(get("ADDR")),
        namespace=get("NAMESPACE"),
        token=get("TOKEN"),
        token_file=get("TOKEN_FILE"),
        role_id=get("ROLE_ID"),
        secret_id_file=get("SECRET_ID_FILE"),
        approle_mount=get("APPROLE_MOUNT", "approle").strip("/"),
        paths=_split_paths(get("PATHS", "secret/")),
        ca_file=get("CACERT"),
        timeout_s=_parse_seconds("TIMEOUT_SEC", get("TIMEOUT_SEC"), DEFAULT_TIMEOUT_S),
        cache_s=min(_parse_seconds("CACHE_SEC", get("CACHE_SEC"), DEFAULT_CACHE_S), MAX_CACHE_S),
    )
    if settings.role_id and not settings.secret_id_file:
        raise InvalidInput("NOETL_VAULT_ROLE_ID needs NOETL_VAULT_SECRET_ID_FILE")
    if not (settings.role_id or settings.token or settings.token_file):
        raise InvalidInput(
            "the worker has no login for Vault",
            hint="set NOETL_VAULT_TOKEN_FILE, or NOETL_VAULT_ROLE_ID with NOETL_VAULT_SECRET_ID_FILE",
        )
    return settings


def _check_address(text: str) -> str:
    if not text:
        raise InvalidInput(
            "the provider vault needs NOETL_VAULT_ADDR, where the worker runs: the address of Vault",
            hint="for example https://vault.example:8200",
        )
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL()
    is_safe = url.scheme == "https" or (url.scheme == "http" and url.host in LOOPBACK_HOSTS)
    has_more = bool(url.userinfo or url.query or url.fragment)
    if not is_safe or not url.host or has_more:
        raise InvalidInput(
            "NOETL_VAULT_ADDR is not an https address; http is accepted on this machine only",
            hint="for example https://vault.example:8200",
        )
    return text.rstrip("/")


def _split_paths(text: str) -> tuple[str, ...]:
    paths = [path.strip().strip("/") for path in text.split(",")]
    return tuple(path for path in paths if path)


def _parse_seconds(name: str, text: str, default: float) -> float:
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise InvalidInput(f"NOETL_VAULT_{name} is a number of seconds above 0")
    return seconds


def _read_line(variable: str, file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(MAX_TOKEN_FILE_BYTES)
        text = data.decode().strip()
    except OSError as error:
        raise InvalidInput(f"the file of {variable} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isascii() or not text.isprintable():
        raise InvalidInput(f"the file of {variable} is not one line of text")
    return text
