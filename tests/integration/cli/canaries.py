"""Secrets in 25 shapes, a playbook that takes them through the tools, and the places to search for them afterwards."""

import base64
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from noetl.log.stored_json import decompress_json
from noetl.pipeline.secrets.forms import list_base64_forms

CORE = "kanarieXq7"  # stands in all of them but one, so that one search finds every encoding of every part
NUMBER = "4711081594026537"
CANARIES = [
    f"{CORE}-plain-3f9a1c77",
    f"it's {CORE} 'quoted'",
    f'a "{CORE}" \\ back\\\\slash',
    f"first line {CORE} one\nsecond line {CORE} two\n",
    f"carriage {CORE} return\r\n\tand a tab {CORE} too",
    f"Ünïcödé-{CORE}-ßĐ日本語",
    f"🔑{CORE}🦜𝔘𝔫𝔦",
    f"c2VjcmV0{CORE}QUJDRA+/==",
    f"a/b?c={CORE}&e=%20f#g+h@i:j",
    f"postgresql://etl:{CORE}pw@127.0.0.1:1/db?sslmode=disable",
    CORE + "x" * 2_500 + CORE + "y" * 2_500 + CORE,
    NUMBER,
    f"deadbeef{CORE}00ff",
    json.dumps({"client_secret": f"{CORE}-json", "n": 1}),
    f"<b>{CORE}</b>&amp;'\"",
    f"$({CORE}) `{CORE}`; | & {CORE} > x",
    f"{{{{ {CORE} }}}}{{% raw %}}",
    f"'; DROP TABLE {CORE}; --",
    f"  {CORE} with spaces  ",
    f"eyJhbGciOiJIUzI1NiJ9.{CORE}.s5-_x",
    f"-----BEGIN PRIVATE KEY-----\nMIIE{CORE}w0BAQEFAASC\nAgEA{CORE}AoIBAQC7VJ\n-----END PRIVATE KEY-----",
    f"already%20encoded%2F{CORE}%3D",
    f"\x1b[31m{CORE}\x07\x08bell",
    f"\u202e{CORE}\u0301\u200d",
    CORE,
]
FIELDS = {f"f{number:02}": value for number, value in enumerate(CANARIES)}
ONE = "{{ keychain.canaries[n] }}"
ALL = "{{ keychain.canaries }}"
FAILED = "{{ error is defined }}"
LOOP: dict[str, Any] = {
    "in": list(FIELDS),
    "iterator": "n",
    "spec": {"mode": "parallel", "policy": {"failure": "best_effort"}},
}
KEYCHAIN = [
    {"name": "canaries", "kind": "credential", "credential": "canaries"},
    {
        "name": "login",
        "kind": "basic",
        "map": {"username": "ann", "password": "{{ keychain.canaries.f08 }}"},
    },
    {
        "name": "database",
        "kind": "static",
        "map": {"host": "127.0.0.1", "port": 1, "password": "{{ keychain.canaries.f01 }}"},
    },
]
ENCODED = """
import base64, html, json, shlex, sys, urllib.parse
result = []
for name, value in sorted(all.items()):
    data = value.encode()
    forms = [value, base64.b64encode(data).decode(), base64.urlsafe_b64encode(b'u:' + data).decode(), data.hex(),
             urllib.parse.quote(value), urllib.parse.quote_plus(value), json.dumps(value), repr(value), repr(data),
             html.escape(value), shlex.quote(value), json.dumps(json.dumps({'x': value})), value.replace("'", "''")]
    for form in forms:
        print(name, form)
        print(form, file=sys.stderr)
    result.append({'name': name, value: forms, 'deep': {'x': [{'y': 'a' + value + 'b'}]}})
"""
CUT = """
value = v
print('x' * 16370 + value)
raise ValueError('x' * (2000 - len(value) // 2 if len(value) < 1000 else 1990) + value)
"""
HOLD = """
import os, pathlib, time
pathlib.Path(flag + '.begun').touch()
while not os.path.exists(flag):
    time.sleep(0.01)
result = len(all)
"""


def make_steps(address: str, flag: Path) -> list[dict[str, Any]]:
    """The steps by name, in order. Those that fail say so: the next one follows their error."""
    python = {"kind": "python", "input": {"all": ALL}}
    one = {"v": ONE, "n": "{{ n }}"}
    printed = " ".join(f"{{{{ keychain.canaries.{name} }}}}" for name in FIELDS)
    request = {
        "kind": "http",
        "method": "POST",
        "auth": "login",
        "params": {"k": ONE},
        "headers": {"X-Key": "{{ keychain.canaries.f00 }}"},
        "body": {"v": ONE},
    }
    return [
        {
            "step": "echo",
            "tool": [
                {
                    "name": "keep",
                    "kind": "noop",
                    "set": {"ctx.kept": "{{ keychain.canaries.f05 }}"},
                },
                {"name": "say", **python, "code": ENCODED},
            ],
            "set": {"ctx.said": "{{ output.data }}"},
        },
        {
            "step": "raises",
            "loop": LOOP,
            "tool": {
                "kind": "python",
                "input": one,
                "code": "import sys\nprint(v, file=sys.stderr)\nraise ValueError('no ' + v)",
            },
        },
        {"step": "cut", "loop": LOOP, "tool": {"kind": "python", "input": one, "code": CUT}},
        {
            "step": "shell",
            "fails": True,
            "tool": {
                "kind": "shell",
                "env": {"GIVEN": "{{ keychain.canaries.f03 }}"},
                "cmds": [
                    f"printf '%s\\n' {printed}; printf '%s\\n' {printed} >&2; echo \"$GIVEN\"; exit 3"
                ],
            },
        },
        {
            "step": "stderr",
            "fails": True,
            "tool": {
                "kind": "shell",
                "cmds": [
                    "printf %s {{ keychain.canaries.f00 }} >&2; head -c 780 /dev/zero | tr '\\0' x >&2; exit 3"
                ],
            },
        },
        {"step": "ask", "loop": LOOP, "tool": {**request, "url": f"{address}/echo"}},
        {"step": "refused", "loop": LOOP, "tool": {**request, "url": f"{address}/fail"}},
        {
            "step": "nobody",
            "fails": True,
            "tool": {
                "kind": "http",
                "url": "http://127.0.0.1:1/{{ keychain.canaries.f08 | urlencode }}",
            },
        },
        {
            "step": "moved",
            "fails": True,
            "tool": {"kind": "http", "url": f"{address}/moved", "method": "POST", "body": ALL},
        },
        {
            "step": "rows",
            "loop": LOOP,
            "tool": {
                "kind": "postgres",
                "auth": "local",
                "query": f"SELECT {ONE} AS x, length({ONE}) AS n",
            },
        },
        {
            "step": "casts",
            "loop": LOOP,
            "tool": {"kind": "postgres", "auth": "local", "query": f"SELECT ({ONE} || 'z')::int"},
        },
        {
            "step": "login",
            "fails": True,
            "tool": {"kind": "postgres", "auth": "database", "query": "SELECT 1"},
        },
        {"step": "duck", "loop": LOOP, "tool": {"kind": "duckdb", "query": f"SELECT {ONE} AS x"}},
        {
            "step": "quack",
            "loop": LOOP,
            "tool": {"kind": "duckdb", "query": f"SELECT error({ONE})"},
        },
        {
            "step": "moves",
            "fails": True,
            "tool": {
                "kind": "transfer",
                "source": {
                    "kind": "duckdb",
                    "query": "SELECT {{ keychain.canaries.f13 }} AS a, 1 AS id",
                },
                "target": {"kind": "postgres", "auth": "local", "table": "nowhere.none"},
            },
        },
        {
            "step": "sends",
            "fails": True,
            "tool": {
                "kind": "sink",
                "data": [{"v": "{{ keychain.canaries.f07 }}"}],
                "target": {"kind": "http", "url": f"{address}/fail", "auth": "login"},
            },
        },
        {
            "step": "stores",
            "fails": True,
            "tool": {
                "kind": "sink",
                "data": [{"v": "{{ keychain.canaries.f14 }}"}],
                "target": {"kind": "postgres", "auth": "local", "table": "nowhere.none"},
            },
        },
        {
            "step": "publishes",
            "fails": True,
            "tool": {
                "kind": "nats",
                "operation": "publish",
                "subject": "x",
                "value": ALL,
                "auth": {
                    "servers": "nats://127.0.0.1:1",
                    "url": "nats://127.0.0.1:1",
                    "token": "{{ keychain.canaries.f19 }}",
                },
                "timeout": "1s",
            },
        },
        {
            "step": "renders",
            "loop": LOOP,
            "tool": {
                "kind": "noop",
                "input": {"x": "{{ (keychain.canaries[n] ~ 'z') | int }}"},
            },
        },
        {"step": "secret", "tool": {"kind": "secrets", "name": "canaries"}},
        {
            "step": "use",
            "tool": {
                "kind": "python",
                "code": "print(v)\nresult = v",
                "input": {"v": "{{ secret.value }}"},
            },
        },
        {
            "step": "crash",
            "fails": True,
            "tool": {**python, "code": "import os\nprint(all, flush=True)\nos._exit(3)"},
        },
        {
            "step": "hold",
            "tool": {"kind": "python", "code": HOLD, "input": {"all": ALL, "flag": str(flag)}},
        },
        {"step": "end", "tool": {"kind": "noop", "input": {"done": True}}},
    ]


# How each step ends: the codes of its errors, or `ok`. Of a loop these are the ways in which its items end.
OUTCOMES: dict[str, set[str]] = {
    "echo": {"ok"},
    "raises": {"PYTHON_ERROR"},
    "cut": {"PYTHON_ERROR"},
    "shell": {"SHELL_EXIT"},
    "stderr": {"SHELL_EXIT"},
    "ask": {"ok"},
    "refused": {"HTTP_500"},
    "nobody": {"HTTP_CONNECTION"},
    "moved": {"HTTP_ORIGIN"},
    "rows": {"ok"},
    "casts": {"SQL_ERROR"},
    "login": {"CONNECTION_FAILED"},
    "duck": {"ok"},
    "quack": {"SQL_ERROR"},
    "moves": {"SQL_ERROR"},
    "sends": {"HTTP_500"},
    "stores": {"SINK_TABLE"},
    "publishes": {"NATS_UNAVAILABLE"},
    "renders": {"ok", "TEMPLATE_LIMIT"},
    "secret": {"ok"},
    "use": {"ok"},
    "crash": {"TOOL_CRASHED"},
    "hold": {"ok"},
    "end": {"ok"},
}


def link_steps(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each step follows the one before it, also if that has failed."""
    linked = []
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        fails = step.get("fails", False)
        step = {name: part for name, part in step.items() if name != "fails"}
        if following is not None:
            arc = {"step": following["step"]}
            step["next"] = [{**arc, "when": FAILED}] if fails else following["step"]
        linked.append(step)
    return linked


class CanaryHandler(BaseHTTPRequestHandler):
    """`/echo` answers with what it was sent; `/fail` too, but with an error that a worker cuts inside of it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        said = {"path": self.path, "headers": dict(self.headers), "body": body}
        status, content = 200, json.dumps(said)
        if self.path.startswith("/fail"):
            status, content = 500, "x" * 1_480 + body + self.path + str(dict(self.headers))
        if self.path.startswith("/moved"):
            status = 307
        data = content.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if status == 200 else "text/plain")
        self.send_header("Content-Length", str(len(data)))
        if status == 307:
            self.send_header("Location", f"http://127.0.0.1:1/{self.headers.get('X-Key')}")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class ManyConnections(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 100  # as many as a worker may open at once


class EchoServer:
    def __enter__(self) -> str:
        self._server = ManyConnections(("127.0.0.1", 0), CanaryHandler)
        Thread(target=lambda: self._server.serve_forever(0.01), daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


# ---- searching ---------------------------------------------------------------------------------------------------------


def list_needles() -> list[bytes]:
    """What is searched: the parts of all canaries that no encoding for texts changes, plain, in hex and in base64."""
    needles: set[str] = set()
    for text in (CORE, NUMBER):
        data = text.encode()
        needles |= {text, data.hex(), data.hex().upper(), *list_base64_forms(data)}
    needles.discard(
        base64.b64encode(CORE.encode()).decode().rstrip("=")
    )  # its end depends on what follows
    return sorted(needle.encode() for needle in needles)


def find_canaries(place: str, content: bytes) -> list[str]:
    """A line for each hit: where it is, and what stands around it."""
    found = []
    for needle in list_needles():
        at = content.find(needle)
        if at >= 0:
            found.append(f"{place}: {content[max(0, at - 150) : at + 60]!r}")
    return found


def read_parquet(data: bytes) -> bytes:
    return str(pq.read_table(BytesIO(data)).to_pylist()).encode("utf-8", "surrogatepass")


def read_arrow(data: bytes) -> bytes:
    return str(pa.ipc.open_file(data).read_all().to_pylist()).encode("utf-8", "surrogatepass")


# By the bytes with which the data begin.
DECODERS: list[tuple[bytes, Callable[[bytes], bytes]]] = [
    (b"x", decompress_json),
    (b"x", zlib.decompress),
    (b"\x1f\x8b", gzip.decompress),
    (b"PAR1", read_parquet),
    (b"ARROW1", read_arrow),
]


def decode_layers(data: bytes) -> Iterator[bytes]:
    """The data, and what it is made from."""
    yield data
    for start, decode in DECODERS:
        if data.startswith(start):
            with suppress(ValueError, zlib.error, OSError, pa.ArrowException):
                yield decode(data)


def dump_database(dsn: str) -> Iterator[tuple[str, bytes]]:
    """Each table with every value of every row, binary values decoded too."""
    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "SELECT schemaname, relname FROM pg_stat_user_tables"
        ).fetchall()
        for schema, table in tables:
            rows = connection.execute(f'SELECT * FROM "{schema}"."{table}"')
            values = [layer for row in rows for value in row for layer in list_layers(value)]
            yield f"{schema}.{table}", b"\n".join(values)


def list_layers(value: Any) -> Iterator[bytes]:
    """A value of the database as bytes, in all ways to look at it."""
    if isinstance(value, bytes):
        yield from decode_layers(value)
    elif isinstance(value, str):
        yield value.encode("utf-8", "surrogatepass")
    elif isinstance(value, dict | list):
        yield json.dumps(value, default=str).encode()
        yield str(value).encode("utf-8", "surrogatepass")
    elif value is not None:
        yield str(value).encode()


def read_processes(ours: set[int]) -> Iterator[tuple[str, bytes]]:
    """The command lines of all processes, and the environments of ours."""
    for process in Path("/proc").glob("[0-9]*"):
        files = ["cmdline", "environ"] if int(process.name) in ours else ["cmdline"]
        for name in files:
            try:
                yield f"{process}/{name}", (process / name).read_bytes()
            except OSError:  # it has ended
                continue
