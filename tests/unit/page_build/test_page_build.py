"""`ui/build.py`: builds the page when its sources have changed, once, and never shows half of it."""

import json
from pathlib import Path

import pytest

from tests.unit.page_build.checkout import Checkout, make_checkout
from ui.build import PageBuild, has_packages


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return make_checkout(tmp_path)


# ---- the sum of the sources --------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["src/main.tsx", "package-lock.json", "index.html", "build.py", "public/icon.svg", ".npmrc"],
)
def test_every_source_counts(checkout: Checkout, name: str) -> None:
    page = PageBuild(checkout.root)
    before = page.sum_sources()
    file = checkout.ui / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("changed")
    assert page.sum_sources() != before


def test_the_name_of_a_source_counts(checkout: Checkout) -> None:
    page = PageBuild(checkout.root)
    before = page.sum_sources()
    (checkout.ui / "src" / "main.tsx").rename(checkout.ui / "src" / "other.tsx")
    assert page.sum_sources() != before


@pytest.mark.parametrize(
    "name", ["node_modules/vite/index.js", "src/main.test.tsx", "__pycache__/build.pyc"]
)
def test_packages_and_tests_do_not_count(checkout: Checkout, name: str) -> None:
    page = PageBuild(checkout.root)
    before = page.sum_sources()
    file = checkout.ui / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("changed")
    assert page.sum_sources() == before


def test_a_copy_has_the_same_sum(tmp_path: Path) -> None:
    first, second = make_checkout(tmp_path / "a"), make_checkout(tmp_path / "b")
    assert PageBuild(first.root).sum_sources() == PageBuild(second.root).sum_sources()


# ---- building ----------------------------------------------------------------------------


def test_a_page_is_built_once(checkout: Checkout) -> None:
    assert not PageBuild(checkout.root).is_fresh()
    code, out = checkout.build()
    assert code == 0, out
    assert checkout.calls == ["npm-cli.js ci", "vite.js build"]
    assert out.splitlines()[0] == "building the page…"
    assert (checkout.target / "dist" / "index.html").read_text() == "<!doctype html>one"
    assert PageBuild(checkout.root).is_fresh()
    assert checkout.build() == (0, "the page is ready\n")
    assert len(checkout.calls) == 2


def test_packages_are_installed_only_when_the_lock_has_changed(checkout: Checkout) -> None:
    checkout.build()
    (checkout.ui / "index.html").write_text("<!doctype html>two")
    assert checkout.build()[0] == 0
    assert checkout.calls[2:] == ["vite.js build"]
    assert (checkout.target / "dist" / "index.html").read_text() == "<!doctype html>two"
    (checkout.ui / "package-lock.json").write_text(
        '{"packages": {"node_modules/vite": {"version": "9"}}}'
    )
    assert checkout.build()[0] == 0
    assert checkout.calls[3:] == ["npm-cli.js ci", "vite.js build"]


def test_a_page_without_its_files_is_built_again(checkout: Checkout) -> None:
    checkout.build()
    (checkout.target / "dist" / "index.html").unlink()
    assert not PageBuild(checkout.root).is_fresh()


def test_of_several_processes_one_builds(checkout: Checkout) -> None:
    processes = [checkout.start_build() for _ in range(4)]
    outs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outs
    assert sorted(checkout.calls) == ["npm-cli.js ci", "vite.js build"]
    assert all(out.endswith("the page is ready\n") for out in outs)


def test_a_build_that_fails_says_why_and_keeps_the_page(checkout: Checkout) -> None:
    checkout.build()
    (checkout.ui / "index.html").write_text("broken")
    checkout.break_node()
    code, out = checkout.build()
    assert code == 1
    assert "the page is not built: node vite.js build failed:\nfirst line\nno such module\n" in out
    assert (checkout.target / "dist" / "index.html").read_text() == "<!doctype html>one"
    assert not PageBuild(checkout.root).is_fresh()


# ---- packages ----------------------------------------------------------------------------

WANTED = {
    "": {"name": "page"},
    "node_modules/vite": {"version": "8.3.6"},
    "node_modules/vitest": {"version": "4.1.12", "dev": True},
    "node_modules/@rolldown/binding-darwin-x64": {"version": "1.2.15", "optional": True},
}


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        (WANTED, True),
        ({"node_modules/vite": {"version": "8.3.6"}}, True),
        ({}, False),
        ({"node_modules/vite": {"version": "8.3.5"}}, False),
        ({**WANTED, "node_modules/vitest": {"version": "4.0.0"}}, False),
        ({**WANTED, "node_modules/extra": {"version": "1"}}, True),
        (None, False),
    ],
)
def test_whether_the_packages_of_the_lock_are_there(
    tmp_path: Path, present: dict[str, object] | None, expected: bool
) -> None:
    (tmp_path / "package-lock.json").write_text(json.dumps({"packages": WANTED}))
    (tmp_path / "node_modules").mkdir()
    if present is not None:
        text = json.dumps({"packages": present})
        (tmp_path / "node_modules" / ".package-lock.json").write_text(text)
    assert has_packages(tmp_path) is expected


def test_an_installation_that_was_cut_short_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "package-lock.json").write_text(json.dumps({"packages": WANTED}))
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / ".package-lock.json").write_text('{"packages": {')
    assert not has_packages(tmp_path)
