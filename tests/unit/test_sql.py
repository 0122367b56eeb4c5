"""Named queries: where a parameter begins, and what only looks like one."""

from pathlib import Path

import pytest

from noetl.postgres.queries import Query, load_queries


def test_parameters_are_numbered_by_first_use_and_casts_strings_and_comments_stay() -> None:
    query = Query(
        "q",
        "select :b::int, ':no', a -- :nor this\nfrom t where x = :a and y = :b and z = '10:30'::time;",
    )
    assert (
        query.text
        == "select $1::int, ':no', a -- :nor this\nfrom t where x = $2 and y = $1 and z = '10:30'::time;"
    )
    assert query.bind(a=1, b=2) == (2, 1)


def test_a_value_too_many_or_too_few_is_an_error() -> None:
    query = Query("q", "select :a")
    with pytest.raises(TypeError, match="query q"):
        query.bind()
    with pytest.raises(TypeError):
        query.bind(a=1, b=2)


def test_a_file_holds_queries_by_name(tmp_path: Path) -> None:
    file = tmp_path / "x.sql"
    file.write_text(
        "-- about\n\n-- name: one\nselect 1;\n\n-- name: two\n-- says more\nselect :x;\n"
    )
    queries = load_queries(file)
    assert list(queries) == ["one", "two"]
    assert queries["one"].text == "select 1;"
    assert queries["two"].parameters == ("x",)
    file.write_text("-- name: one\nselect 1;\n-- name: one\nselect 2;\n")
    with pytest.raises(ValueError, match="twice"):
        load_queries(file)
