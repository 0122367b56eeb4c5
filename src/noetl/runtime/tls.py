"""TLS of servers, and of the commands and workers that call them."""

import ssl
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from pathlib import Path

from noetl.model.errors import InvalidInput
from noetl.runtime.token_files import find_own_server
from noetl.settings import HomeSettings, ListenSettings, read_settings


def make_server_context(listen: ListenSettings) -> ssl.SSLContext | None:
    """The TLS of a server; None without a certificate. Raises `InvalidInput` if it cannot be used."""
    if listen.tls_cert is None and listen.tls_key is None:
        return None
    if listen.tls_cert is None or listen.tls_key is None:
        raise InvalidInput(
            "NOETL_TLS_CERT and NOETL_TLS_KEY belong together",
            hint="the certificate with its chain, and its private key, both in PEM",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate, key = listen.tls_cert.expanduser(), listen.tls_key.expanduser()
    for path in (certificate, key):
        if not path.is_file():
            raise InvalidInput(f"{path} is not a file", hint="NOETL_TLS_CERT, NOETL_TLS_KEY")
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
        raise InvalidInput(
            f"cannot use the certificate {certificate} with the key {key}: {reason}",
            hint="both in PEM, the key of this certificate, without a password",
        ) from error
    return context


def _refuse_password() -> str:
    """Without this, a key with a password would ask for it in the terminal."""
    raise ValueError("the key has a password")


def make_client_context(url: str, home: Path) -> ssl.SSLContext | None:
    """The TLS with which commands and workers call the server at this address; None for http.

    A server of this home names the file of its certificate, which is trusted under any name: local
    callers use an address that the certificate need not have.
    """
    if not url.lower().startswith("https:"):
        return None
    own = find_own_server(url, home)
    if own is not None and own.certificate is not None:
        return _trust_certificate(own.certificate)
    return make_outside_context(url)


def make_outside_context(url: str) -> ssl.SSLContext | None:
    """The TLS for a server that is not of this home, or for an issuer; None for http."""
    if not url.lower().startswith("https:"):
        return None
    authority = read_settings(HomeSettings).tls_ca
    return _trust_authority(None if authority is None else str(authority.expanduser()))


def _trust_certificate(certificate: str) -> ssl.SSLContext:
    """Trust this certificate alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _load_trusted(context, certificate)
    return context


@cache
def _trust_authority(authority: str | None) -> ssl.SSLContext:
    """Trust what the system and Python's usual list trust, and this authority if it is given."""
    context = ssl.create_default_context()
    context.load_verify_locations(import_module("certifi").where())
    if authority is not None:
        _load_trusted(context, authority)
    return context


def _load_trusted(context: ssl.SSLContext, file: str) -> None:
    try:
        context.load_verify_locations(file)
    except (ssl.SSLError, OSError) as error:
        raise InvalidInput(
            f"cannot trust the certificates of {file}: {error}",
            hint="a file in PEM that you can read: NOETL_TLS_CA, or NOETL_TLS_CERT of the server",
        ) from error


def measure_days_left(certificate: Path) -> float:
    """The days until the certificate expires. Raises `InvalidInput` if it cannot be read."""
    x509 = import_module("cryptography.x509")
    try:
        found = x509.load_pem_x509_certificate(certificate.expanduser().read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read the certificate {certificate}: {error}") from error
    left = found.not_valid_after_utc - datetime.now(UTC)
    return float(left.total_seconds() / 86_400)
