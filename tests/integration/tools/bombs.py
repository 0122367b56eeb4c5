"""Answers that are small on the wire and huge when they are decoded, from a real server."""

import gzip
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import zstandard

BLOCK = bytes(1 << 20)
BLOCKS = 1_500  # of zeros: 1.5 GB


def _compress(wbits: int) -> bytes:
    """1.5 GB of zeros. A full flush makes all blocks but the first equal, so only two are compressed."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, wbits)
    first = compressor.compress(BLOCK) + compressor.flush(zlib.Z_FULL_FLUSH)
    block = compressor.compress(BLOCK) + compressor.flush(zlib.Z_FULL_FLUSH)
    return first + block * (BLOCKS - 1) + compressor.flush()


@cache
def make_bomb(encoding: str) -> bytes:
    match encoding:
        case "gzip":
            return _compress(zlib.MAX_WBITS | 16)
        case "gzip, gzip":
            return gzip.compress(_compress(zlib.MAX_WBITS | 16), 9)
        case "deflate":
            return _compress(zlib.MAX_WBITS)
        case "raw deflate":
            return _compress(-zlib.MAX_WBITS)
        case "zstd":
            return zstandard.ZstdCompressor().compress(BLOCK) * BLOCKS
    raise AssertionError(encoding)


class BombHandler(BaseHTTPRequestHandler):
    """`/bomb/ENCODING`; `/chunked/ENCODING`; `/error/ENCODING` with status 500; `/page/N`, of which the third is a bomb;
    `/endless`, which is not encoded and never ends; `/members`, a million empty gzip members."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        _, kind, name = (*self.path.split("/", 2), "")[:3]
        encoding = name.replace("+", " ").replace("%20", " ").replace("%2C", ",")
        try:
            match kind:
                case "bomb":
                    self._send(200, encoding, make_bomb(encoding))
                case "error":
                    self._send(500, encoding, make_bomb(encoding))
                case "chunked":
                    self._send_chunked(encoding, iter([make_bomb(encoding)]))
                case "page":
                    self._send_page(int(name))
                case "endless":
                    self._send_chunked("", iter(lambda: BLOCK, None))
                case "members":
                    self._send(200, "gzip", gzip.compress(b"") * 1_000_000)
                case "token":
                    self._send(200, "gzip", make_bomb("gzip"))
        except ConnectionError:
            pass  # the client has seen enough

    do_POST = do_GET

    def _send(self, status: int, encoding: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Encoding", encoding.removeprefix("raw "))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_chunked(self, encoding: str, parts: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Encoding", encoding.removeprefix("raw "))
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in parts:
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def _send_page(self, number: int) -> None:
        if number == 3:
            self._send(200, "gzip", make_bomb("gzip"))
        else:
            page = f'{{"items": [{number}], "more": true}}'
            self._send(200, "gzip", gzip.compress(page.encode()))

    def log_message(self, *words: Any) -> None:
        """Nobody reads it."""


class BombServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *request: Any) -> None:
        """A client that has seen enough resets its connection."""


@contextmanager
def run_bomb_server() -> Iterator[str]:
    """Yields its address."""
    server = BombServer(("127.0.0.1", 0), BombHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
