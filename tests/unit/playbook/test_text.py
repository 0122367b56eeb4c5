"""YAML text: what it becomes, where things stood, and what is refused."""

import tracemalloc

import pytest

from noetl.playbook.findings import Code
from noetl.playbook.text import MAX_BYTES, MAX_NODES, Map, Mark, Seq, read_document, strip_marks


def problem(source: str | bytes) -> Code:
    (found,) = read_document(source).problems
    return found.code


def test_scalars_follow_yaml_1_2() -> None:
    source = "a: yes\nb: on\nc: 2024-01-01\nd: 0o17\ne: 0x1F\nf: 1e3\ng: ~\nh: True\ni: 12:30\nj: '1'\nk: 1_000\nl: -3\nm: .5"
    assert strip_marks(read_document(source).data) == {
        "a": "yes", "b": "on", "c": "2024-01-01", "d": 15, "e": 31, "f": 1000.0, "g": None, "h": True, "i": "12:30",
        "j": "1", "k": "1_000", "l": -3, "m": 0.5,
    }  # fmt: skip


def test_keys_values_and_items_know_their_places() -> None:
    data = read_document("a: 1\nb:\n  - x\n  - k: |\n      text\n").data
    assert isinstance(data, Map)
    assert data.marks["b"] == (Mark(2, 1), Mark(3, 3))
    items = data["b"]
    assert isinstance(items, Seq)
    assert items.marks == [Mark(3, 5), Mark(4, 5)]
    assert items[1].marks["k"] == (Mark(4, 5), Mark(4, 8, "|"))


def test_aliases_are_copies() -> None:
    data = read_document("a: &x {n: [1]}\nb: *x\n").data
    assert data["a"] == data["b"]
    data["a"]["n"].append(2)
    assert data["b"] == {"n": [1]}


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("", Code.YAML_SYNTAX),
        ("# only a comment", Code.YAML_SYNTAX),
        ("a: b: c", Code.YAML_SYNTAX),
        ("a: 1\n---\nb: 2", Code.YAML_SYNTAX),
        ("a: *nothing", Code.YAML_SYNTAX),
        ("a: \x00", Code.YAML_SYNTAX),
        ("a: \ud800", Code.YAML_SYNTAX),
        (b"a: \xff", Code.YAML_SYNTAX),
        ("a: &a {b: *a}", Code.YAML_LIMIT),
        ("[" * 100_000, Code.YAML_LIMIT),
        ("{a: " * 100_000, Code.YAML_LIMIT),
        ("- " * 400_000, Code.YAML_LIMIT),
        ("[" + "1," * (MAX_NODES + 1) + "]", Code.YAML_LIMIT),
        ("a: !!python/name:os.system x", Code.YAML_TAG),
        ("a: !x 1", Code.YAML_TAG),
        ("a: 1\na: 2", Code.DUPLICATE_KEY),
        ("1: a", Code.BAD_KEY),
        ("? [a]\n: b", Code.BAD_KEY),
        ("a: .nan", Code.YAML_VALUE),
        ("a: " + "9" * 5000, Code.YAML_VALUE),
        ("a: 1e999", Code.YAML_VALUE),
    ],
)
def test_refused(source: str | bytes, code: Code) -> None:
    assert problem(source) == code


def test_depth_counts_what_an_alias_stands_for() -> None:
    assert not read_document("a: &a " + "[" * 40 + "]" * 40).problems
    nested = "a: &a " + "[" * 30 + "]" * 30 + "\nb: " + "[" * 30 + "*a" + "]" * 30
    assert problem(nested) == Code.YAML_LIMIT


def test_several_duplicate_keys_are_all_reported() -> None:
    assert [
        found.mark.line for found in read_document("a: 1\na: 2\nb:\n  c: 1\n  c: 2\n").problems
    ] == [
        2,
        5,
    ]


def bomb(width: int, levels: int) -> str:
    lines = ["l0: &l0 [" + ",".join(["x"] * width) + "]"]
    lines += [f"l{n}: &l{n} [" + ",".join([f"*l{n - 1}"] * width) + "]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "source", [bomb(10, 10), "x" * (10 * MAX_BYTES), "[" * MAX_BYTES, "a: &a [*a]" * 1000]
)
def test_attacks_are_refused_in_little_memory(source: str) -> None:
    tracemalloc.start()
    try:
        found = read_document(source)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.problems[0].code in (Code.YAML_LIMIT, Code.YAML_SYNTAX)
    assert peak < 30_000_000


def test_a_million_bytes_and_no_more() -> None:
    assert not read_document("a: " + "x" * (MAX_BYTES - 3)).problems
    assert problem("a: " + "ß" * (MAX_BYTES // 2)) == Code.YAML_LIMIT
    assert problem(b"a" * (MAX_BYTES + 1)) == Code.YAML_LIMIT


def test_byte_order_mark_is_no_part_of_the_text() -> None:
    assert read_document("\ufeffa: 1").data == {"a": 1}
    assert read_document(b"\xef\xbb\xbfa: 1").data == {"a": 1}


@pytest.mark.parametrize(
    "text",
    [
        "{{ [" + "1," * 4_900 + "] }}",
        "{{ [" + "1," * 4_900,
        "{% if " + "1 + " * 2_400 + " 1 %}{% endif %}",
    ],
)
def test_templates_of_a_playbook_are_bounded_together(text: str) -> None:
    fine = read_document("\n".join(f"a{n}: '{text}'" for n in range(20)))
    assert fine.problems == []
    escaped = text.replace("{", "\\x7b")
    for written in (f"'{text}'", f'"{escaped}"'):
        found = read_document("\n".join(f"a{n}: {written}" for n in range(40)))
        assert [problem.code for problem in found.problems] == ["YAML_LIMIT"]
        assert "braces" in found.problems[0].message
