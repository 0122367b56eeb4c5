"""Documents that can be wrong by themselves: generated pages, names of tests, links, examples."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from noetl.playbook.validation import load

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["events.md", "cli.md", "http-api.md", "settings.md"])
def test_a_generated_page_is_up_to_date(page: str, generate: ModuleType) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == generate.pages()[page], "run `make docs`"


# ---- invariants --------------------------------------------------------------------------------------------------------

INVARIANTS = (DOCS / "invariants.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`((?:tests|bench)/[^`]+)`", INVARIANTS))))
def test_an_invariant_names_a_test_that_exists(named: str) -> None:
    path, _, function = named.partition("::")
    assert (ROOT / path).is_file()
    assert re.search(
        rf"def {function}\(" if function else "", (ROOT / path).read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("rule", sorted(set(re.findall(r'rule "([^"]+)"', INVARIANTS))))
def test_an_invariant_names_a_rule_of_the_oracle(rule: str) -> None:
    oracle = (ROOT / "tests/simulation/oracle.py").read_text(encoding="utf-8")
    assert re.search(rf'Violation\(\s*"{re.escape(rule)}"', oracle)


def test_every_invariant_is_defended() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", INVARIANTS, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert all("tests/" in defence or "rule" in defence for _, defence in rows)


# ---- links, paths, examples --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_inside_a_page_lead_to_a_heading(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^a-z0-9 _-]", "", line.lower()).replace(" ", "-")
        for line in re.findall(r"^#+ (.+)$", text, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_depends_on_a_machine(page: Path) -> None:
    assert not re.search(
        r"(?<![\w.])/(home|root|work|tmp|Users|opt)/", page.read_text(encoding="utf-8")
    )


def test_the_page_on_the_folders_names_every_folder() -> None:
    told = (DOCS / "architecture.md").read_text(encoding="utf-8")
    folders = [
        path.name for path in (ROOT / "src/noetl").iterdir() if (path / "__init__.py").is_file()
    ]
    assert [folder for folder in folders if f"  {folder}/ " not in told] == []


EXAMPLES = sorted(
    path for path in (ROOT / "examples").rglob("*.yaml") if not path.name.endswith(".test.yaml")
)


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_an_example_is_a_good_playbook_in_todays_spelling(example: Path) -> None:
    loaded = load(example.read_bytes(), file=name(example))
    assert [str(finding) for finding in loaded.findings] == []


YAML_BLOCKS = [
    (page, block)
    for page in (ROOT / "README.md", DOCS / "tutorial.md")
    for block in re.findall(
        r"```yaml\n(apiVersion.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
]


@pytest.mark.parametrize(
    ("page", "block"), YAML_BLOCKS, ids=[name(page) for page, _ in YAML_BLOCKS]
)
def test_a_playbook_in_a_document_is_a_good_one(page: Path, block: str) -> None:
    assert [str(finding) for finding in load(block, file=name(page)).findings] == []
