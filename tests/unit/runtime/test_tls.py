"""TLS of servers and callers: what is refused, and who trusts whom."""

import ssl
from pathlib import Path

import pytest

from noetl.cli.doctor import check_transport
from noetl.model.errors import InvalidInput
from noetl.runtime.lock_files import LockFile, read_boot_id
from noetl.runtime.running_servers import FOLDER, LockedServer
from noetl.runtime.tls import make_client_context, make_server_context
from noetl.settings import HomeSettings, ListenSettings
from tests.certificates import make_certificate


def test_a_certificate_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path) -> None:
    files = make_certificate(tmp_path, "localhost")
    other = tmp_path / "other"
    other.mkdir()
    foreign = make_certificate(other, "localhost")
    assert make_server_context(ListenSettings()) is None
    usable = make_server_context(ListenSettings(tls_cert=files.certificate, tls_key=files.key))
    assert usable is not None
    assert usable.minimum_version == ssl.TLSVersion.TLSv1_2
    wrong = {
        "belong together": ListenSettings(tls_cert=files.certificate),
        "is not a file": ListenSettings(tls_cert=tmp_path / "none", tls_key=files.key),
        "KEY_VALUES_MISMATCH": ListenSettings(tls_cert=files.certificate, tls_key=foreign.key),
        "cannot use the certificate": ListenSettings(tls_cert=files.key, tls_key=files.key),
    }
    for words, listen in wrong.items():
        with pytest.raises(InvalidInput, match=words):
            make_server_context(listen)


def test_a_server_of_the_home_is_trusted_by_its_certificate_alone(tmp_path: Path) -> None:
    files = make_certificate(tmp_path, "noetl.example.org")
    url = "https://127.0.0.1:8082"
    assert make_client_context("http://127.0.0.1:8082", tmp_path) is None
    usual = make_client_context(url, tmp_path)
    assert usual is not None
    assert usual.check_hostname
    content = LockedServer(
        database="d",
        runtime_id=1,
        boot=read_boot_id() or "",
        address=url,
        certificate=str(files.certificate),
    )
    lock = LockFile(tmp_path / FOLDER, "server")
    lock.acquire(content)
    try:
        own = make_client_context("https://localhost:8082", tmp_path)
        assert own is not None
        assert not own.check_hostname
        assert len(own.get_ca_certs()) == 1
        elsewhere = make_client_context("https://127.0.0.1:8083", tmp_path)
        assert elsewhere is not None
        assert elsewhere.check_hostname
    finally:
        lock.release()


def test_an_authority_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_TLS_CA", str(tmp_path / "none.pem"))
    with pytest.raises(InvalidInput, match=r"none\.pem"):
        make_client_context("https://noetl.example.org", tmp_path)


@pytest.mark.parametrize(
    ("server_url", "host", "days", "status", "words"),
    [
        (None, "127.0.0.1", None, "ok", "on this machine only"),
        ("http://localhost:8082", "127.0.0.1", None, "ok", "on this machine only"),
        ("http://10.0.0.1:8082", "127.0.0.1", None, "warn", "can be read on the way"),
        ("https://10.0.0.1:8082", "127.0.0.1", None, "ok", "by TLS"),
        (None, "0.0.0.0", None, "warn", "without TLS"),
        (None, "0.0.0.0", 30.0, "ok", "expires in 30 days"),
        (None, "0.0.0.0", 10.0, "warn", "expires in 10 days"),
        (None, "0.0.0.0", -1.0, "error", "has expired"),
    ],
)
def test_doctor_looks_at_the_transport(
    tmp_path: Path, server_url: str | None, host: str, days: float | None, status: str, words: str
) -> None:
    listen = ListenSettings(host=host)
    if days is not None:
        files = make_certificate(tmp_path, "localhost", days=days)
        listen = ListenSettings(host=host, tls_cert=files.certificate, tls_key=files.key)
    (found,) = check_transport(HomeSettings(server_url=server_url), listen)
    assert (found.status, words in found.message) == (status, True), found
