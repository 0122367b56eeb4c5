"""The texts in which a secret may appear: as it is, and in the encodings that tools, libraries and
programs write. Pure.
"""

import base64
import html
import json
import re
import shlex
from collections.abc import Iterator
from urllib.parse import quote, quote_plus, unquote

MIN_SHORT_SECRET_CHARS, MIN_LONG_SECRET_CHARS = 4, 8  # characters
MAX_ENCODED_CHARS = 64 * 1024  # characters of a secret that is found in every encoding
_PASSWORD_IN_ADDRESS = re.compile(r"://[^/\s:@]*:([^/\s@]+)@|\bpassword=(\S+)")
_JSON_SPECIAL = re.compile(r"[\"\\\x00-\x1f]")
_ESCAPE_IN_URL = re.compile(r"%[0-9A-F]{2}")
_ESCAPE_IN_JSON = re.compile(r"\\u[0-9a-f]{4}")
_SHELL_SPECIAL = re.compile(r"([^A-Za-z0-9@%+=:,./_-])")


def list_forms(value: str) -> Iterator[str]:
    """The forms of a secret, some of them more than once.

    A form of a short secret may be an ordinary word or number, so a short secret has few.
    """
    yield value
    try:
        data = value.encode()
    except UnicodeEncodeError:
        return
    yield from _list_common_forms(value, data)
    if MIN_LONG_SECRET_CHARS <= len(value) <= MAX_ENCODED_CHARS:
        yield from _escape_for_json(_list_rarer_forms(value, data))
    lines = value.splitlines()
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= 2 * MIN_LONG_SECRET_CHARS)
    for match in _PASSWORD_IN_ADDRESS.finditer(value):
        password = match[1] or match[2]
        if password != value:
            yield from list_forms(password)
            yield from list_forms(unquote(password))


def list_base64_forms(data: bytes) -> Iterator[str]:
    """The data in base64: alone, and inside a longer text, where it starts at any of three places.

    Padding is not part of a form, so it is found with and without.
    """
    for text in _list_aligned_base64(data):
        yield text
        yield text.replace("+", "-").replace("/", "_")


def _list_aligned_base64(data: bytes) -> Iterator[str]:
    yield base64.b64encode(data).decode().rstrip("=")
    for skipped_bytes, skipped_chars in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(bytes(skipped_bytes) + data).decode()
        # The last character depends on what follows, if the data do not end with a group of three.
        whole_chars = (skipped_bytes + len(data)) * 8 // 6
        core = encoded[skipped_chars:whole_chars]
        if len(core) >= MIN_LONG_SECRET_CHARS:
            yield core


def _list_common_forms(value: str, data: bytes) -> Iterator[str]:
    encoded = base64.b64encode(data).decode().rstrip("=")
    yield encoded
    yield encoded.replace("+", "-").replace("/", "_")
    yield quote(value, safe="")
    yield quote_plus(value)
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]


def _list_rarer_forms(value: str, data: bytes) -> Iterator[str]:
    yield from list_base64_forms(data)
    yield data.hex()
    yield data.hex().upper()
    yield from _list_url_forms(value)
    yield from _list_json_forms(value)
    yield from _list_html_forms(value)
    yield repr(value)[1:-1]
    yield repr(data)[2:-1]
    yield value.replace("\\", "\\\\").replace("'", "\\'").replace('"', '\\"')
    yield shlex.quote(value).removeprefix("'").removesuffix("'")
    yield value.replace("'", "'\\''")
    yield _SHELL_SPECIAL.sub(r"\\\1", value)
    yield value.replace("'", "''")


def _list_url_forms(value: str) -> Iterator[str]:
    encodings = (
        quote(value, safe=""),
        quote_plus(value),
        quote(value),
        quote(value, safe="!'()*~"),  # encodeURIComponent
    )
    for once in encodings:
        twice = quote(once, safe="")
        for encoded in (once, twice):
            yield encoded
            yield _ESCAPE_IN_URL.sub(lambda match: match[0].lower(), encoded)


def _list_json_forms(value: str) -> Iterator[str]:
    for encoded in (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
        yield encoded
        yield encoded.replace("/", "\\/")
        yield _ESCAPE_IN_JSON.sub(lambda match: "\\u" + match[0][2:].upper(), encoded)
    # As Go, Java and JavaScript write JSON that may stand in a page.
    escaped = json.dumps(value, ensure_ascii=False)[1:-1]
    for char in "<>&'=+":
        escaped = escaped.replace(char, f"\\u{ord(char):04x}")
    yield escaped
    yield json.dumps(value, ensure_ascii=False)[1:-1].translate(_PAGE_ESCAPES)


_PAGE_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&"}


def _list_html_forms(value: str) -> Iterator[str]:
    escaped = html.escape(value, quote=False)
    yield escaped
    yield escaped.replace('"', "&quot;")
    for apostrophe in ("&#x27;", "&#39;", "&apos;"):
        for quotes in ("&quot;", "&#34;"):
            yield escaped.replace('"', quotes).replace("'", apostrophe)


def _escape_for_json(forms: Iterator[str]) -> Iterator[str]:
    """The forms, and the same inside a JSON text, also if that is a text of another one."""
    for form in forms:
        yield form
        if not _JSON_SPECIAL.search(form):
            continue
        for escaped in (json.dumps(form, ensure_ascii=False)[1:-1], json.dumps(form)[1:-1]):
            yield escaped
            yield json.dumps(escaped, ensure_ascii=False)[1:-1]
