"""Answers every path that is not of the API: a file of the page, or the page itself, which shows what the path names.

The page runs under a strict policy: only scripts of this server, styles of this server or with the
nonce of the answer, no other site, no frame around it, and no text that becomes markup or code.
"""

import gzip
import secrets
from collections.abc import Iterable
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import noetl
from noetl.server.pages.files import HASHED_FOLDER, PageFile, PageFiles

BUILT_PAGE = Path(noetl.__file__).parent / "ui" / "dist"
NONCE_MARK = "__NONCE__"  # in index.html
NONCE_BYTES = 16
RESERVED = frozenset(
    ("api", "health", "ready", "metrics")
)  # first parts of paths that are no pages
UNSAFE_PARTS = frozenset((".", ".."))
POLICY = (
    "default-src 'none'; script-src 'self'; style-src {styles}; img-src 'self' data: blob:; "
    "connect-src 'self'; worker-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types noetl"
)
FILE_POLICY = POLICY.format(
    styles="'self'"
)  # scripts of workers run under the policy of their file
ISOLATION = {"Cross-Origin-Opener-Policy": "same-origin", "Referrer-Policy": "same-origin"}
IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATED = "no-cache"  # kept, and used after the server has said that it is still the same
NOT_BUILT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="3">
<title>NoETL: the page is not built</title>
<style nonce="__NONCE__">
body { font: 15px/1.6 system-ui, sans-serif; max-width: 40em; margin: 4em auto; padding: 0 1em }
</style>
</head>
<body>
<main>
<h1>The page is not built yet</h1>
<p>This server answers the API, and has no page to show. In a checkout, <code>noetl dev</code> and
<code>noetl server start</code> build it in the background; the first time takes about a minute, and the
log of the server says how it goes. <code>make ui</code> builds it at once.</p>
<p>An installed package has the page, unless it was made with <code>NOETL_UI=skip</code>.</p>
<p>Until then, <code>noetl exec list</code> and <code>noetl exec get ID</code> show executions. This page
looks again every three seconds.</p>
</main>
</body>
</html>
"""


class PageAnswers:
    """Answers GET and HEAD for pages and their files."""

    def __init__(self, folder: Path = BUILT_PAGE) -> None:
        self._files = PageFiles(folder)

    async def answer_page(self, request: Request) -> Response:
        """The file of this name, else the page. A missing file is 404."""
        name = request.scope["path"].removeprefix("/")
        file = await self._files.load(name)
        if file is not None:
            return _answer_file(file, request)
        if _names_file(name):
            raise HTTPException(404)
        return _answer_index(self._files.read_index() or NOT_BUILT)


def is_page_path(path: str) -> bool:
    """Whether a path may name a page or a file of it."""
    parts = path.removeprefix("/").split("/")
    if parts[0] in RESERVED or not path.isprintable() or "\\" in path:
        return False
    has_unsafe_part = not UNSAFE_PARTS.isdisjoint(parts)
    has_empty_part = "" in parts[:-1]
    return not has_unsafe_part and not has_empty_part


def _names_file(name: str) -> bool:
    """Whether a browser wants a file: pages have no dot in their first part and are not below assets/."""
    return name.startswith(HASHED_FOLDER) or ("/" not in name and "." in name)


def _answer_index(text: str) -> Response:
    nonce = secrets.token_urlsafe(NONCE_BYTES)
    headers = {
        "Content-Security-Policy": POLICY.format(styles=f"'self' 'nonce-{nonce}'"),
        "Cache-Control": "no-store",
        **ISOLATION,
    }
    return Response(text.replace(NONCE_MARK, nonce), 200, headers, "text/html")


def _answer_file(file: PageFile, request: Request) -> Response:
    headers = {
        "Content-Security-Policy": FILE_POLICY,
        "Cache-Control": IMMUTABLE if file.is_hashed else REVALIDATED,
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
    }
    if file.etag in _split_list(request.headers.get("if-none-match", "")):
        return Response(None, 304, headers)
    content = file.content
    if file.is_compressed and _accepts_gzip(request.headers.get("accept-encoding", "")):
        headers["Content-Encoding"] = "gzip"
    elif file.is_compressed:
        content = gzip.decompress(content)
    return Response(content, 200, headers, file.media_type)


def _accepts_gzip(header: str) -> bool:
    for coding in _split_list(header):
        name, _, quality = coding.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _split_list(header: str) -> Iterable[str]:
    return (part.strip() for part in header.split(","))
