"""A server that speaks the protocol of Vault: tokens, AppRole, namespaces, KV version 2, leases.

Written after Vault's HTTP API documentation, because no package of the registries has a server. Time does not pass here:
a test ends tokens and leases itself.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any


@dataclass
class FakeTime:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class VaultServer:
    """What the server has, and what it was asked."""

    address: str = ""
    namespace: str = ""
    secrets: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # of KV, by path after the mount
    leased: dict[str, dict[str, Any]] = field(default_factory=dict)  # of other engines, by path
    leases: set[str] = field(default_factory=set)
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)  # secret id by role id
    lease_seconds: float = 100
    status: int = 0  # every answer has this status, if it is set
    hangs: bool = False
    closing: Event = field(default_factory=Event)
    asked: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, headers: Any, body: Any) -> tuple[int, Any]:
        self.asked.append(f"{method} {path}")
        if self.hangs:
            self.closing.wait()
        if self.status:
            return self.status, {"errors": [f"canary {headers.get('X-Vault-Token')} {body}"]}
        if (headers.get("X-Vault-Namespace") or "") != self.namespace:
            return 404, {"errors": ["no handler for route"]}
        if method == "POST" and path == "auth/approle/login":
            return self._log_in(body)
        token = self.tokens.get(headers.get("X-Vault-Token") or "")
        if token is None:
            return 403, {"errors": ["permission denied"]}
        if path == "auth/token/lookup-self":
            return 200, {"data": {**token, "id": headers.get("X-Vault-Token")}}
        if path == "auth/token/renew-self":
            auth = {"client_token": headers.get("X-Vault-Token"), "lease_duration": token["ttl"]}
            return 200, {"auth": {**auth, "renewable": token["renewable"]}}
        if path == "sys/leases/renew":
            if body["lease_id"] not in self.leases:
                return 400, {"errors": ["lease not found"]}
            return 200, {
                "lease_id": body["lease_id"],
                "lease_duration": self.lease_seconds,
                "renewable": True,
            }
        return self._read(path)

    def _log_in(self, body: Any) -> tuple[int, Any]:
        if self.roles.get(body["role_id"]) != body["secret_id"]:
            return 400, {"errors": [f"invalid secret id {body['secret_id']}"]}
        value = f"s.token{len(self.asked)}"
        self.tokens[value] = {"ttl": 100, "renewable": True}
        return 200, {"auth": {"client_token": value, "lease_duration": 100, "renewable": True}}

    def _read(self, path: str) -> tuple[int, Any]:
        if path in self.leased:
            lease = f"{path}/{len(self.asked)}"
            self.leases.add(lease)
            found = {"lease_id": lease, "lease_duration": self.lease_seconds, "renewable": True}
            return 200, {**found, "data": self.leased[path]}
        if path not in self.secrets:
            return 404, {"errors": []}
        data = {"data": self.secrets[path], "metadata": {"version": 3, "deletion_time": ""}}
        return 200, {"lease_id": "", "lease_duration": 0, "renewable": False, "data": data}


@contextmanager
def run_vault() -> Iterator[VaultServer]:
    vault = VaultServer()

    class VaultHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"null")
            status, answer = vault.answer(
                self.command, self.path.removeprefix("/v1/"), self.headers, body
            )
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if 300 <= status < 400:
                self.send_header("Location", "http://127.0.0.1:9/v1/elsewhere")
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), VaultHandler) as server:
        server.daemon_threads = True
        vault.address = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=lambda: server.serve_forever(0.01), daemon=True)
        thread.start()
        try:
            yield vault
        finally:
            vault.closing.set()
            server.shutdown()
            thread.join()
