"""Servers that are reached from elsewhere: names, TLS and cookies."""

import ssl
from pathlib import Path

import httpx
import pytest

from noetl.runtime.tls import make_server_context
from noetl.settings import ListenSettings
from tests.certificates import CertificateFiles, make_certificate
from tests.integration.api.api_server import ApiServer, run_api_server


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_certificate(tmp_path, "localhost", "127.0.0.1")


def make_tls(files: CertificateFiles) -> ssl.SSLContext | None:
    return make_server_context(ListenSettings(tls_cert=files.certificate, tls_key=files.key))


async def sign_in(here: ApiServer, browser: httpx.AsyncClient) -> str:
    answer = await browser.post("/api/session", json={"token": here.token})
    assert answer.status_code == 200, answer.text
    return answer.headers["set-cookie"]


async def test_a_server_on_all_addresses_refuses_names_that_were_rebound_to_it() -> None:
    async with run_api_server(host="0.0.0.0", allowed_hosts=("noetl.example.org",)) as here:
        assert here.url.startswith("http://127.0.0.1:")
        for host, status in (
            ("127.0.0.1", 200),
            ("noetl.example.org", 200),
            ("noetl.example.org:443", 200),
            ("evil.example", 421),
            ("0.0.0.0", 421),
            ("10.0.0.1", 421),
        ):
            answer = await here.http.get("/api/executions", headers={"Host": host})
            assert answer.status_code == status, host
        for origin, status in (
            ("https://noetl.example.org", 200),
            ("https://evil.example", 403),
            ("https://sub.noetl.example.org", 403),
        ):
            headers = {"Host": "noetl.example.org", "Origin": origin}
            answer = await here.http.get("/api/executions", headers=headers)
            assert answer.status_code == status, origin


async def test_with_tls_cookies_are_sent_over_tls_only(files: CertificateFiles) -> None:
    trusted = ssl.create_default_context(cafile=str(files.certificate))
    async with run_api_server(tls=make_tls(files)) as here:
        assert here.url.startswith("https://")
        async with httpx.AsyncClient(base_url=here.url, verify=trusted) as browser:
            cookie = await sign_in(here, browser)
            assert cookie.startswith("__Host-noetl_session_")
            assert "; Path=/;" in cookie
            assert cookie.endswith("; Secure")
            assert (await browser.get("/api/executions")).status_code == 200
            assert (await browser.delete("/api/session")).json() == {"ended": True}
        plain = here.url.replace("https:", "http:")
        async with httpx.AsyncClient(base_url=plain) as eavesdropped:
            with pytest.raises(httpx.HTTPError):
                await eavesdropped.get("/health")


async def test_behind_a_proxy_with_tls_cookies_are_sent_over_tls_only() -> None:
    settings = {
        "allowed_hosts": ("noetl.example.org",),
        "public_url": "https://noetl.example.org",
    }
    async with run_api_server(**settings) as here:
        headers = {"Host": "noetl.example.org", "Origin": "https://noetl.example.org"}
        async with httpx.AsyncClient(base_url=here.url, headers=headers) as browser:
            cookie = await sign_in(here, browser)
            assert cookie.startswith("__Host-")
            assert cookie.endswith("; Secure")
