"""The files of the built page. They are loaded, and compressed once, when a browser first asks for them."""

import asyncio
import gzip
import hashlib
import os
from contextlib import suppress
from pathlib import Path

import msgspec

INDEX = "index.html"
HASHED_FOLDER = "assets/"  # vite puts a sum of their content into the names of files there
COMPRESSION_LEVEL = 9  # once per file and process
MEDIA_TYPES = {
    ".css": "text/css",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
COMPRESSED_ALREADY = {".ico", ".png", ".woff2"}
UNKNOWN_MEDIA_TYPE = "application/octet-stream"


class PageFile(msgspec.Struct, frozen=True):
    """A file as it is kept in memory: compressed, if that makes it smaller."""

    content: bytes
    is_compressed: bool
    is_hashed: bool  # its name changes with its content
    media_type: str
    etag: str


class PageFiles:
    """The built page of one folder. Only names that were found there can be asked for.

    A build replaces the whole folder, so another folder means other files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._version: tuple[int, int] | None = None
        self._names: frozenset[str] = frozenset()
        self._index: str | None = None
        self._loaded: dict[str, PageFile] = {}

    def read_index(self) -> str | None:
        """The text of the page itself. None if it is not built."""
        self._check_version()
        if self._index is None and INDEX in self._names:
            with suppress(OSError):  # a build has just replaced the folder
                self._index = (self._folder / INDEX).read_text(encoding="utf-8")
        return self._index

    async def load(self, name: str) -> PageFile | None:
        """A file by its name in the folder. None if there is none, and for the page itself."""
        self._check_version()
        if name not in self._names or name == INDEX:
            return None
        loaded = self._loaded  # of this build: another may replace it meanwhile
        if name not in loaded:
            try:
                loaded[name] = await asyncio.to_thread(_load_file, self._folder, name)
            except OSError:  # a build has just replaced the folder
                return None
        return loaded[name]

    def _check_version(self) -> None:
        """Forget everything if the page was built since."""
        try:
            stat = self._folder.stat()
            version = (stat.st_ino, stat.st_mtime_ns)
        except OSError:
            version = None
        if version == self._version:
            return
        self._names = _list_names(self._folder)
        self._index = None
        self._loaded = {}
        self._version = version


def _list_names(folder: Path) -> frozenset[str]:
    """The regular files of the folder. Hidden files are of the build and no part of the page."""
    names: set[str] = set()
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            file = Path(place, name)
            if not name.startswith(".") and not file.is_symlink():
                names.add(file.relative_to(folder).as_posix())
    return frozenset(names)


def _load_file(folder: Path, name: str) -> PageFile:
    plain = (folder / name).read_bytes()
    suffix = Path(name).suffix
    content = plain
    if suffix not in COMPRESSED_ALREADY:
        content = gzip.compress(plain, COMPRESSION_LEVEL, mtime=0)
    is_compressed = len(content) < len(plain)
    return PageFile(
        content=content if is_compressed else plain,
        is_compressed=is_compressed,
        is_hashed=name.startswith(HASHED_FOLDER),
        media_type=MEDIA_TYPES.get(suffix, UNKNOWN_MEDIA_TYPE),
        etag=f'W/"{hashlib.sha256(plain).hexdigest()[:32]}"',
    )
