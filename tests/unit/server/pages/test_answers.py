"""The page in a browser: which file or page a path names, under which policy, and how long it is kept."""

import asyncio
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from noetl.metrics import Metrics
from noetl.server.http.guard import Guard
from noetl.server.http.routing import HttpRouter
from noetl.server.pages.answers import PageAnswers, is_page_path

SCRIPT = b"console.log('page')\n" * 200
STYLE = b"body { color: teal }\n" * 100
PICTURE = b"\x89PNG" + bytes(range(256))
INDEX = (
    '<!doctype html><meta name="csp-nonce" content="__NONCE__"><style nonce="__NONCE__"></style>'
)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; "
    "img-src 'self' data: blob:; connect-src 'self'; worker-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types noetl"
)


@dataclass
class Answer:
    status: int
    headers: Headers
    body: bytes

    @property
    def nonce(self) -> str:
        return self.headers["content-security-policy"].partition("'nonce-")[2].partition("'")[0]


Ask = Callable[..., Answer]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    built = tmp_path / "dist"
    (built / "assets").mkdir(parents=True)
    (built / ".vite").mkdir()
    (built / ".vite" / "manifest.json").write_bytes(b"{}")
    (built / "index.html").write_text(INDEX)
    (built / "icon.svg").write_bytes(b"<svg/>" * 50)
    (built / "picture.png").write_bytes(PICTURE)
    (built / "assets" / "index-1a2b.js").write_bytes(SCRIPT)
    (built / "assets" / "index-3c4d.css").write_bytes(STYLE)
    (built / "assets" / "link.js").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "secret.txt").write_text("secret")
    return built


async def answer_api(request: Request) -> Response:
    return Response(b"api")


@pytest.fixture
def ask(folder: Path) -> Ask:
    """A server with the page of the folder: asked with the path as it is, which clients would tidy."""
    router = HttpRouter()
    router.add_plain("GET", "/api/thing", answer_api)
    router.set_fallback(is_page_path, PageAnswers(folder).answer_page)
    app = Guard(router, Metrics())

    def ask_path(path: str, method: str = "GET", **headers: str) -> Answer:
        return asyncio.run(send_request(app, path, method, headers))

    return ask_path


async def send_request(app: Any, path: str, method: str, headers: dict[str, str]) -> Answer:
    sent: list[Any] = []
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), *raw],
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(sent[0]["status"], Headers(raw=sent[0]["headers"]), body)


# ---- the page itself ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/", "/executions", "/executions/724551830122291200", "/executions/", "/playbooks/etl/v1.2",
     "/apis", "/healthy", "/index.html/x", "/operations/ü"],
)  # fmt: skip
def test_every_path_that_is_not_of_the_api_shows_the_page(ask: Ask, path: str) -> None:
    answer = ask(path)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.body.startswith(b"<!doctype html>")


def test_the_page_has_the_exact_policy(ask: Ask) -> None:
    answer = ask("/executions")
    assert answer.headers["content-security-policy"] == POLICY.format(nonce=answer.nonce)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"


def test_the_nonce_is_fresh_and_stands_in_the_page(ask: Ask) -> None:
    answers = [ask("/") for _ in range(20)]
    assert len({answer.nonce for answer in answers}) == 20
    for answer in answers:
        assert len(answer.nonce) >= 22
        assert answer.body.decode() == INDEX.replace("__NONCE__", answer.nonce)


def test_the_page_is_never_kept(ask: Ask) -> None:
    headers = ask("/").headers
    assert headers.getlist("cache-control") == ["no-store"]
    assert "etag" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/executions", "/assets/index-1a2b.js"])
def test_pages_are_only_read(ask: Ask, method: str, path: str) -> None:
    answer = ask(path, method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/assets/index-1a2b.js", "/icon.svg"])
def test_head_has_the_headers_of_get(ask: Ask, path: str) -> None:
    asked, told = ask(path), ask(path, "HEAD")
    assert told.status == 200
    assert told.headers["content-length"] == asked.headers["content-length"]
    assert told.headers["content-type"] == asked.headers["content-type"]


@pytest.mark.parametrize("path", ["/api/nothing", "/api", "/health/x", "/ready/x", "/metrics/x"])
def test_unknown_paths_of_the_api_stay_problems(ask: Ask, path: str) -> None:
    answer = ask(path)
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/problem+json"


def test_answers_of_the_api_are_not_kept(ask: Ask) -> None:
    assert ask("/api/thing").headers.getlist("cache-control") == ["no-store"]


# ---- files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content", "media_type"),
    [
        ("/assets/index-1a2b.js", SCRIPT, "text/javascript; charset=utf-8"),
        ("/assets/index-3c4d.css", STYLE, "text/css; charset=utf-8"),
        ("/icon.svg", b"<svg/>" * 50, "image/svg+xml"),
    ],
)
def test_files_are_compressed_for_those_who_take_it(
    ask: Ask, path: str, content: bytes, media_type: str
) -> None:
    for accepted in ("gzip", "br, gzip;q=0.5", "*"):
        answer = ask(path, accept_encoding=accepted)
        assert (answer.status, answer.headers["content-type"]) == (200, media_type)
        assert answer.headers["content-encoding"] == "gzip"
        assert len(answer.body) < len(content)
        assert gzip.decompress(answer.body) == content
    for refused in ("", "br", "gzip;q=0", "gzip; q=0.0"):
        answer = ask(path, accept_encoding=refused)
        assert "content-encoding" not in answer.headers
        assert answer.body == content


def test_pictures_are_sent_as_they_are(ask: Ask) -> None:
    answer = ask("/picture.png", accept_encoding="gzip")
    assert "content-encoding" not in answer.headers
    assert (answer.body, answer.headers["content-type"]) == (PICTURE, "image/png")


def test_hashed_files_are_kept_for_ever_and_others_are_revalidated(ask: Ask) -> None:
    hashed = ask("/assets/index-1a2b.js").headers
    assert hashed.getlist("cache-control") == ["public, max-age=31536000, immutable"]
    assert ask("/icon.svg").headers.getlist("cache-control") == ["no-cache"]
    assert hashed["vary"] == "Accept-Encoding"


def test_a_file_that_the_browser_has_is_not_sent_again(ask: Ask) -> None:
    etag = ask("/icon.svg").headers["etag"]
    again = ask("/icon.svg", if_none_match=f'"other", {etag}')
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", etag)
    assert again.headers.getlist("cache-control") == ["no-cache"]
    assert ask("/icon.svg", if_none_match='"other"').status == 200
    assert ask("/assets/index-1a2b.js").headers["etag"] != etag


def test_scripts_of_workers_get_the_policy_without_a_nonce(ask: Ask) -> None:
    policy = ask("/assets/index-1a2b.js").headers["content-security-policy"]
    assert policy == POLICY.replace(" 'nonce-{nonce}'", "")


@pytest.mark.parametrize(
    "path", ["/assets/gone-1a2b.js", "/assets/", "/assets/x/y.css", "/favicon.ico", "/index.html"]
)
def test_a_file_that_is_not_built_is_missing(ask: Ask, path: str) -> None:
    assert ask(path).status == 404


TRAVERSALS = [
    "/../secret.txt", "/assets/../../secret.txt", "/assets/../index.html", "/./icon.svg", "//secret.txt",
    "//etc/passwd", "/assets//index-1a2b.js", "/..\\secret.txt", "/assets/..\\..\\secret.txt", "/%2e%2e/secret.txt/..",
    "/executions/../../secret.txt", "/../../../../../../../../etc/passwd", "/assets/index-1a2b.js\x00.css",
    "/assets/link.js", "/.vite/../icon.svg", "/a\r\nSet-Cookie: x=1", "/a\x7f", "/assets/‮gpj.js",
]  # fmt: skip


@pytest.mark.parametrize("path", TRAVERSALS)
def test_nothing_beside_the_page_can_be_read(ask: Ask, path: str) -> None:
    answer = ask(path)
    assert answer.status in (400, 404), answer.body
    assert b"secret" not in answer.body
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "path", ["/.vite/manifest.json", "/secret.txt/x", "/etc/passwd", "/src/noetl/ui"]
)
def test_paths_of_other_files_show_the_page(ask: Ask, path: str) -> None:
    assert ask(path).body.startswith(b"<!doctype html>")


# ---- builds ------------------------------------------------------------------------------


def test_without_a_built_page_it_says_how_to_build_it(ask: Ask, folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    answer = ask("/executions/7")
    assert answer.status == 200
    assert b"<code>make ui</code>" in answer.body
    assert f'<style nonce="{answer.nonce}">'.encode() in answer.body
    assert answer.headers["content-security-policy"] == POLICY.format(nonce=answer.nonce)
    assert ask("/assets/index-1a2b.js").status == 404


def test_a_page_that_is_built_while_the_server_runs_is_shown(ask: Ask, folder: Path) -> None:
    assert ask("/assets/index-1a2b.js").status == 200
    folder.rename(folder.with_name("dist.old"))
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html>second")
    (folder / "assets" / "index-5e6f.js").write_bytes(b"second")
    assert ask("/").body == b"<!doctype html>second"
    assert ask("/assets/index-5e6f.js").body == b"second"
    assert ask("/assets/index-1a2b.js").status == 404
