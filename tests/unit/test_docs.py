"""Documents that can be wrong by themselves: generated pages, names of tests, links, examples."""

import re
from pathlib import Path

import pytest

from docs import api_types, build_site, error_codes, generate, template_functions
from noetl.playbook.validation import load

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOP_PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"]
PAGES = [*(ROOT / page for page in TOP_PAGES), *sorted(DOCS.rglob("*.md"))]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def generated_pages() -> dict[str, str]:
    return generate.pages()


@pytest.mark.parametrize(
    "page", ["events.md", "cli.md", "http-api.md", "settings.md", "errors.md", "templates.md"]
)
def test_a_generated_page_is_up_to_date(page: str, generated_pages: dict[str, str]) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == generated_pages[page], "run `make docs`"


def test_the_types_of_the_api_are_up_to_date() -> None:
    written = api_types.TYPES_FILE.read_text(encoding="utf-8")
    assert written == api_types.write_types(), "run `make docs`"


@pytest.fixture(scope="module")
def codes() -> set[str]:
    """The error codes in the source."""
    return error_codes.collect_codes()


def test_every_error_code_is_described(codes: set[str]) -> None:
    missing = codes - set(error_codes.list_described_codes())
    assert sorted(missing) == [], "describe them in docs/error_codes.toml, then run `make docs`"


def test_every_described_error_code_exists(codes: set[str]) -> None:
    described = error_codes.list_described_codes()
    assert len(described) == len(set(described))
    assert sorted(set(described) - codes) == []


def test_error_codes_are_found_however_they_are_written(tmp_path: Path) -> None:
    source = """
LOST = "BY_NAME"
class Refusal(Exception):
    def __init__(self, code, message): ...
class Own(NoetlError):
    code = "BY_CLASS"
def fail(message, code="BY_DEFAULT"):
    raise Refusal("BY_ARGUMENT", message)
Failure(code="BY_KEYWORD" if busy else LOST)
fields = {"code": "BY_MAP", "kind": "NOT_THIS"}
code, message = "BY_PAIR", "NOT_THIS_EITHER"
Failure(code=f"BY_STATUS_{status}")
os.environ.get("NOR_THIS")
"""
    (tmp_path / "module.py").write_text(source)
    ways = "NAME CLASS DEFAULT ARGUMENT KEYWORD MAP PAIR STATUS_nnn".split()
    assert error_codes.collect_codes(tmp_path) == {f"BY_{way}" for way in ways}


@pytest.mark.parametrize("group", template_functions.list_functions())
def test_every_function_of_templates_is_described(group: str) -> None:
    functions = template_functions.list_functions()[group]
    described = template_functions.read_descriptions()[group]
    message = "describe it in docs/template_functions.toml, then run `make docs`"
    assert set(described) == set(functions), message


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


def test_the_reading_order_names_every_page() -> None:
    order = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in DOCS.glob("*.md")} - {"index.md"}
    assert [page for page in sorted(pages) if f"]({page})" not in order] == []


def test_a_contributor_is_sent_to_folders_and_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|docs|examples|bench)/[^`*A-Z]+)`", text)
    folders = re.findall(r"^\| \d+\. .*\| `([a-z/]+/)`", text, re.MULTILINE)
    assert len(folders) == 10
    paths = [*named, *(f"src/noetl/{folder}" for folder in folders)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


# ---- the site ----------------------------------------------------------------------------


def test_dead_links_of_a_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<h1 id="top">a</h1><a href="#top">a</a><a href="#no">b</a><a href="other/">c</a>'
        '<a href="other/#here">d</a><a href="other/#gone">e</a><a href="lost.html">f</a>'
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<p id="here"><a href="../index.html">g</a>')
    found = ["#no", "lost.html", "other/#gone"]
    assert list(build_site.find_dead_links(tmp_path)) == [f"index.html: {link}" for link in found]


def test_a_link_to_a_file_without_a_page_is_refused() -> None:
    with pytest.raises(LookupError, match="Makefile has no page"):
        build_site.rewrite_links("[it](../Makefile)", DOCS / "cli.md")


def test_links_are_rewritten_for_the_site_but_not_in_code() -> None:
    text = "[a](../CHANGELOG.md#b) [c](../examples/hello.yaml) [d](cli.md)\n```\n[e](../Makefile)\n```\n"
    rewritten = (
        "[a](changelog.md#b) [c](examples/hello.md) [d](cli.md)\n```\n[e](../Makefile)\n```\n"
    )
    assert build_site.rewrite_links(text, DOCS / "jobs.md") == rewritten


def test_pipes_in_the_code_of_tables_are_unescaped() -> None:
    assert build_site.unescape_pipes("| `a \\| b` | c \\| d |\n`a \\| b`") == (
        "| `a | b` | c \\| d |\n`a \\| b`"
    )


EXAMPLES = sorted(
    path for path in (ROOT / "examples").rglob("*.yaml") if not path.name.endswith(".test.yaml")
)


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_an_example_is_a_good_playbook_in_todays_spelling(example: Path) -> None:
    loaded = load(example.read_bytes(), file=name(example))
    assert [str(finding) for finding in loaded.findings] == []


def test_the_page_of_examples_names_every_example() -> None:
    folder = ROOT / "examples"
    page = (folder / "README.md").read_text(encoding="utf-8")
    files = [file for ending in ("*.yaml", "*.yml") for file in folder.rglob(ending)]
    names = sorted(file.relative_to(folder).as_posix() for file in files)
    assert [named for named in names if f"({named})" not in page and f"`{named}`" not in page] == []


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
