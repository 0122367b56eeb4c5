"""Where `http` steps may connect to, in the processes that users start: a pool, `noetl dev`, `noetl run`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.stack import NoetlCommand, run_stack, write_playbook

STEP = '  - step: one\n    tool: {kind: http, url: "%s"}\n'


@contextmanager
def run_redirecting_server(location: str) -> Iterator[str]:
    """A server that answers `/here` itself, and sends whoever asks for anything else to `location`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/here" else 302)
            self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def call_url(client: NoetlCommand, folder: Path, url: str) -> str:
    """How a run ends that calls this URL: its status, or the code of its error with the message."""
    found = client("run", write_playbook(folder, "calls", STEP % url), "--json").json
    if found["status"] == "completed":
        return "completed"
    return str(found)


def test_a_pool_reaches_only_what_its_operator_names(noetl: NoetlCommand, tmp_path: Path) -> None:
    with run_stack(noetl) as stack:
        secret = f"{stack.url}/api/worker/credentials/apitoken"
        other_spelling = secret.replace("127.0.0.1", "127.1")
        with run_redirecting_server(secret) as url:
            with stack.run_worker(NOETL_HTTP_ALLOW=""):
                refused = call_url(stack.client, tmp_path, f"{url}/here")
                assert "EGRESS_REFUSED" in refused
                assert "a loopback address; if it is meant, name it in NOETL_HTTP_ALLOW" in refused
            with stack.run_worker(NOETL_HTTP_ALLOW="127.0.0.0/8"):
                assert call_url(stack.client, tmp_path, f"{url}/here") == "completed"
                for own in (secret, other_spelling, f"{url}/elsewhere"):
                    found = call_url(stack.client, tmp_path, own)
                    assert "EGRESS_REFUSED" in found
                    assert "the API of NoETL itself" in found
                metadata = call_url(stack.client, tmp_path, "http://169.254.169.254/latest")
                assert "which no setting allows" in metadata


def test_dev_and_run_reach_this_machine_and_not_their_own_api(
    noetl: NoetlCommand, tmp_path: Path, free_port: int
) -> None:
    own = f"http://127.0.0.1:{free_port}"
    write_playbook(tmp_path, "first", STEP % own)
    with (
        run_redirecting_server(f"{own}/api/worker/credentials/apitoken") as url,
        noetl.keep_running("dev", tmp_path, "--port", free_port) as process,
    ):
        assert process.stdout is not None
        told = iter(process.stdout)
        assert own in next(told)
        assert "first version 1" in next(told), "the server answers now"
        # In the process of the server, and in one of its own over the same home.
        for client in (noetl.with_env(NOETL_SERVER_URL=own), noetl):
            assert call_url(client, tmp_path, f"{url}/here") == "completed"
            for path in (f"{own}/api/pool/status", f"{url}/elsewhere"):
                found = call_url(client, tmp_path, path)
                assert "EGRESS_REFUSED" in found
                assert "the API of NoETL itself" in found


def test_a_worker_says_which_entry_is_no_target(noetl: NoetlCommand) -> None:
    said = noetl.with_env(NOETL_HTTP_ALLOW="10.0.0.0/8,http://x")("worker", "start")
    assert said.code == 2
    assert "NOETL_HTTP_ALLOW: 'http://x' is neither a host nor an address nor a network" in said.err
