"""The documentation builds as a site, strictly."""

from pathlib import Path

from docs import build_site

DOCS = Path(__file__).parents[2] / "docs"


def test_the_site_has_every_page_and_no_dead_link() -> None:
    assert build_site.main() == 0
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    built = {path.parent.name for path in build_site.SITE.glob("*/index.html")}
    assert pages <= built
