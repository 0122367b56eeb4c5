"""Under which names a server answers: what a page that has rebound its name sends is refused."""

import pytest

from noetl.model.errors import InvalidInput
from noetl.server.http.hosts import AllowedHosts
from noetl.settings import ListenSettings, read_settings

NAMES = ("noetl.example.org", "Other.example.org:8443", "[fd12::7]", "192.0.2.9")


@pytest.mark.parametrize(
    "authority",
    [
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1:8082",
        "127.9.9.9",
        "[::1]:8082",
        "noetl.example.org",
        "NOETL.example.org:8082",
        "other.example.org:8443",
        "192.0.2.9:1",
        "10.1.2.3",
        "10.1.2.3:8082",
    ],
)
def test_names_of_the_server_pass(authority: str) -> None:
    assert AllowedHosts(NAMES).allows(authority, "10.1.2.3")


@pytest.mark.parametrize(
    "authority",
    [
        "",
        ":8082",
        "evil.example",
        "evil.example:8082",
        "noetl.example.org.evil.example",
        "evil-noetl.example.org",
        "noetl.example.org.",
        "other.example.org",
        "other.example.org:8082",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "noetl.example.org@evil.example",
        "evil.example#noetl.example.org",
        "evil.example/noetl.example.org",
        "noetl.example.org:x",
        "noetl.example.org, evil.example",
        "10.1.2.4",
        "0x0a010203",
        "167838211",
        "10.1.515",
        "0.0.0.0",
        "[::]",
        "[::ffff:10.1.2.3]",
        "192.0.2.10",
    ],
)
def test_other_names_do_not(authority: str) -> None:
    assert not AllowedHosts(NAMES).allows(authority, "10.1.2.3")


def test_an_address_of_the_machine_passes_where_it_is_the_one_that_was_called() -> None:
    hosts = AllowedHosts()
    assert hosts.allows("10.1.2.3", "::ffff:10.1.2.3")
    assert hosts.allows("[fd12::7]:1", "fd12::7%eth0")
    assert not hosts.allows("10.1.2.3", "127.0.0.1")
    assert not hosts.allows("10.1.2.3", "")


def test_settings_name_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_ALLOWED_HOSTS", "a.example, b.example:8443 ,[fd12::7]")
    monkeypatch.setenv("NOETL_PUBLIC_URL", "https://noetl.example.org/")
    listen = read_settings(ListenSettings)
    assert listen.all_hosts == ("a.example", "b.example:8443", "[fd12::7]", "noetl.example.org")
    assert listen.public_url == "https://noetl.example.org"
    for variable, wrong in (
        ("NOETL_ALLOWED_HOSTS", "*"),
        ("NOETL_ALLOWED_HOSTS", "https://a.example"),
        ("NOETL_PUBLIC_URL", "noetl.example.org"),
        ("NOETL_PUBLIC_URL", "https://noetl.example.org/path"),
        ("NOETL_PUBLIC_URL", "https://user@noetl.example.org"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, wrong)
            with pytest.raises(InvalidInput, match=variable):
                read_settings(ListenSettings)
