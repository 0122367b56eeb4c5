"""Where a path is that a step names, and what its name says."""

from pathlib import Path

import pytest

from noetl.model.errors import InvalidInput
from noetl.spark.paths import choose_format, make_reader_options, make_writer_options, resolve_path
from noetl.spark.profiles import SparkProfile, parse_profile

HERE = SparkProfile()


def test_a_relative_path_is_below_the_folder_of_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_path("out/rel", HERE) == str(tmp_path / "out" / "rel")
    assert resolve_path("../x.csv", HERE) == str(tmp_path.parent / "x.csv")


@pytest.mark.parametrize("where", ["local", "sc://spark:15002", "cluster:spark://master:7077"])
@pytest.mark.parametrize("path", ["/lake/users", "s3://lake/users", "file:///lake/users"])
def test_a_full_path_stays_as_it_is(path: str, where: str) -> None:
    assert resolve_path(path, parse_profile(where)) == path


@pytest.mark.parametrize("where", ["sc://spark:15002", "cluster:spark://master:7077"])
def test_a_relative_path_is_refused_where_others_would_look_for_it(where: str) -> None:
    with pytest.raises(InvalidInput, match="'out/rel' is a relative path"):
        resolve_path("out/rel", parse_profile(where))


@pytest.mark.parametrize(
    ("path", "said", "format"),
    [
        ("/a/x.json", None, "json"),
        ("/a/x.jsonl", None, "json"),
        ("/a/X.CSV", None, "csv"),
        ("/a/*.csv.gz", None, "csv"),
        ("s3://lake/x.orc/", None, "orc"),
        ("/a/x.parquet", None, "parquet"),
        ("/a/x", None, "parquet"),
        ("/a.csv/x", None, "parquet"),
        ("/a/2024.12", None, "parquet"),
        ("/a/x.csv", "json", "json"),
        ("/a/x", "ndjson", "json"),
    ],
)
def test_the_ending_of_a_name_says_the_format_unless_the_step_does(
    path: str, said: str | None, format: str
) -> None:
    assert choose_format(path, said) == format


def test_csv_is_that_of_rfc_4180_and_the_step_may_say_otherwise() -> None:
    assert make_writer_options("csv", None) == {"escape": '"', "header": True}
    assert (
        make_reader_options("csv", {"header": True, "Escape": "\\"}).items()
        >= {"header": True, "Escape": "\\"}.items()
    )
    assert "escape" not in make_reader_options("csv", {"Escape": "\\"})
    assert make_reader_options("parquet", None) == {}


@pytest.mark.parametrize("format", ["csv", "json", "xml"])
def test_broken_records_fail_unless_the_input_says_otherwise(format: str) -> None:
    assert make_reader_options(format, {"header": True})["mode"] == "FAILFAST"
    assert (
        make_reader_options(format, {"Mode": "PERMISSIVE"}).items()
        >= {"Mode": "PERMISSIVE"}.items()
    )
    for said in ({"Mode": "PERMISSIVE"}, {"columnNameOfCorruptRecord": "broken"}):
        assert not {"mode", "columnPruning"} & make_reader_options(format, said).keys()
