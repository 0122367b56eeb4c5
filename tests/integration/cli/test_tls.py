"""A server that is reached from elsewhere, with TLS, as its users have it."""

from pathlib import Path

from tests.certificates import make_certificate
from tests.stack import NoetlCommand, temporary_home


def test_commands_call_a_server_with_tls(
    noetl: NoetlCommand, free_port: int, tmp_path: Path
) -> None:
    files = make_certificate(tmp_path, "localhost")
    started = noetl.with_env(
        NOETL_TLS_CERT=str(files.certificate), NOETL_TLS_KEY=str(files.key), NOETL_UI="skip"
    )
    arguments = ("server", "start", "--host", "0.0.0.0", "--port", free_port)
    url = f"https://127.0.0.1:{free_port}"
    with started.keep_running(*arguments) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith(f"server at {url} ")
        # The certificate has no address: the file that the server names is trusted.
        own = noetl.with_env(NOETL_SERVER_URL=url)
        assert own.json("exec", "list") == []
        token = own("token", "create", "elsewhere", "--role", "viewer").out.strip()
        with temporary_home("elsewhere", has_database=False) as home:
            far = NoetlCommand(home).with_env(
                NOETL_SERVER_URL=f"https://localhost:{free_port}", NOETL_TOKEN=token
            )
            refused = far("exec", "list")
            assert refused.code != 0
            assert "NOETL_TLS_CA" in refused.err
            trusting = far.and_env(NOETL_TLS_CA=str(files.certificate))
            assert trusting.json("exec", "list") == []


def test_a_server_without_tls_on_other_addresses_says_so(
    noetl: NoetlCommand, free_port: int
) -> None:
    arguments = ("server", "start", "--host", "0.0.0.0", "--port", free_port)
    with noetl.with_env(NOETL_UI="skip").keep_running(*arguments) as server:
        assert server.stdout is not None
        assert f"http://127.0.0.1:{free_port}" in server.stdout.readline()
        assert server.stdout.readline().startswith("without TLS: others on the network can read")
