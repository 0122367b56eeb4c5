"""Builds the documentation as a site and checks every link of it.

The pages stand where people read them in the repository: docs/, CONTRIBUTING.md, SECURITY.md, CHANGELOG.md, examples/. They are
collected in build/docs, with their links rewritten, and zensical makes build/site of them. `main` ends with 1 if a link is dead.
"""

import os.path
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
TOP_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "report-security.md",
    "docs/decisions": "decisions/index.md",
    "examples": "examples/index.md",
    "examples/README.md": "examples/index.md",
}
_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_CODE_IN_TABLE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")


def main() -> int:
    collect_pages()
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(command, cwd=ROOT)
    if built.returncode:
        return built.returncode
    dead = list(find_dead_links(SITE))
    for link in dead:
        print(f"dead link: {link}", file=sys.stderr)
    print(f"{SITE.relative_to(ROOT)}/index.html")
    return 1 if dead else 0


# ---- the pages ---------------------------------------------------------------------------


def collect_pages() -> None:
    """Write the pages of the site to build/docs."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for source, target in _list_pages():
        text = source.read_text(encoding="utf-8")
        _write_page(target, unescape_pipes(rewrite_links(text, source)))
    shutil.copy(ROOT / "docs" / "site.css", PAGES)
    shutil.copytree(ROOT / "docs" / "images", PAGES / "images")
    _write_page("decisions/index.md", _write_decisions_index())
    for example in _list_examples():
        _write_page(_find_page(example), _write_example(example))


def _list_pages() -> Iterator[tuple[Path, str]]:
    """The Markdown files with their places on the site."""
    for name, target in TOP_PAGES.items():
        if name.endswith(".md") and name != "README.md":
            yield ROOT / name, target
    for source in (ROOT / "docs").rglob("*.md"):
        yield source, source.relative_to(ROOT / "docs").as_posix()


def _write_page(target: str, text: str) -> None:
    path = PAGES / target
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _list_examples() -> list[Path]:
    return sorted((ROOT / "examples").rglob("*.yaml"))


def _write_example(example: Path) -> str:
    name = example.relative_to(ROOT).as_posix()
    return f"# {name}\n\n```yaml\n{example.read_text(encoding='utf-8').rstrip()}\n```\n"


def _write_decisions_index() -> str:
    lines = ["# Decisions", "", "What was decided, why, and what it costs.", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        number = int(path.name.partition("-")[0])
        lines.append(f"- {number}: [{re.sub(r'^[0-9]+[.] ', '', title)}]({path.name})")
    return "\n".join(lines) + "\n"


def unescape_pipes(text: str) -> str:
    """The text without backslashes before pipes in the code of tables.

    GitHub needs them there. Python-Markdown, which zensical uses, would show them.
    """

    def unescape_line(line: re.Match[str]) -> str:
        return _CODE_IN_TABLE.sub(lambda code: code[0].replace("\\|", "|"), line[0])

    return _change_outside_code(
        text, lambda part: re.sub(r"^\|.*$", unescape_line, part, flags=re.MULTILINE)
    )


# ---- links -------------------------------------------------------------------------------


def rewrite_links(text: str, source: Path) -> str:
    """The text with links to files of the repository as links to pages of the site."""
    here = _find_page(source)
    return _change_outside_code(
        text, lambda part: _LINK.sub(lambda link: _rewrite_link(link, source, here), part)
    )


def _change_outside_code(text: str, change: Callable[[str], str]) -> str:
    parts = _FENCE.split(text)
    blocks = _FENCE.findall(text)
    changed = [change(part) for part in parts]
    return "".join(part + block for part, block in zip(changed, [*blocks, ""], strict=True))


def _rewrite_link(link: re.Match[str], source: Path, here: str) -> str:
    target, anchor = link[1], link[2] or ""
    if urlsplit(target).scheme:
        return link[0]
    page = _find_page((source.parent / target).resolve())
    return os.path.relpath(page, os.path.dirname(here) or ".") + anchor


def _find_page(path: Path) -> str:
    """The place on the site of a file or folder of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if name in TOP_PAGES:
        return TOP_PAGES[name]
    if name.startswith("examples/") and name.endswith(".yaml"):
        return name.removesuffix(".yaml") + ".md"
    if name.startswith("docs/") and name.endswith((".md", ".png")):
        return name.removeprefix("docs/")
    raise LookupError(f"{name} has no page on the site: name it without a link")


# ---- the built site ----------------------------------------------------------------------


class _PageReader(HTMLParser):
    """Collects the links and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {""}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def find_dead_links(site: Path) -> Iterator[str]:
    """Links to files or anchors that the site does not have. Links to other sites are not followed."""
    pages = {path: _read_page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            anchors = pages[target].anchors if target in pages else {""}
            if not target.is_file() or unquote(parts.fragment) not in anchors:
                yield f"{path.relative_to(site)}: {link}"


def _read_page(path: Path) -> _PageReader:
    reader = _PageReader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


if __name__ == "__main__":
    sys.exit(main())
