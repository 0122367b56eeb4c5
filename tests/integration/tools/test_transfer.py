"""The transfer tool between real databases and files: everything arrives, once."""

from pathlib import Path
from typing import Any

import duckdb
import orjson
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.tools.port import Outcome
from noetl.tools.transfer.tool import Transfer
from tests.unit.tools.calls import call, closing, failure, run, value

SOURCE = """CREATE TABLE source AS SELECT g AS id, 'é,"' || g AS name, (g / 8.0)::numeric(9, 3) AS amount,
    CASE WHEN g % 3 = 0 THEN '' WHEN g % 3 = 1 THEN 'a"b' END AS note,
    timestamptz '2030-01-01 00:00+02' + g * interval '1 s' AS at, date '2030-01-01' + g AS day, decode('ff00', 'hex') AS raw,
    md5(g::text)::uuid AS uid, jsonb_build_object('g', g) AS doc,
    interval '1 day' * g AS span, array[g, NULL] AS some, array['x "y', NULL] AS words, g % 2 = 0 AS even, g / 7.0::float8 AS f
    FROM generate_series(1, 30) g"""


def transfer_rows(
    source: dict[str, Any],
    target: dict[str, Any],
    key: str = "k",
    scope: dict[str, Any] | None = None,
) -> Outcome:
    config = {"source": source, "target": target}
    [outcome] = run(closing(Transfer(), call(config, scope, key=key)))
    found: Outcome = outcome
    return found


@pytest.fixture
def source_database(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SOURCE)
        connection.execute(
            "CREATE TABLE target (LIKE source); ALTER TABLE target ADD PRIMARY KEY (id)"
        )
    return database


def query_rows(database: str, query: str) -> list[Any]:
    with psycopg.connect(database) as connection:
        return connection.execute(query.encode()).fetchall()


def postgres(database: str, **more: Any) -> dict[str, Any]:
    return {"kind": "postgres", "auth": {"dsn": database}, **more}


def test_postgres_to_postgres_with_every_type(source_database: str) -> None:
    source, target = (
        postgres(source_database, query="SELECT * FROM source"),
        postgres(source_database, table="target", mode="insert"),
    )
    assert value(transfer_rows(source, target)) == {"read": 30, "written": 30, "repeated": False}
    assert query_rows(source_database, "SELECT * FROM target ORDER BY id") == query_rows(
        source_database, "SELECT * FROM source ORDER BY id"
    )


def test_an_insert_that_is_repeated_writes_nothing_more(source_database: str) -> None:
    source, target = (
        postgres(source_database, query="SELECT * FROM source"),
        postgres(source_database, table="public.target"),
    )
    assert value(transfer_rows(source, target))["written"] == 30
    assert value(transfer_rows(source, target)) == {"read": 30, "written": 0, "repeated": True}
    found = failure(transfer_rows(source, target, key="another"))
    assert (found.kind, found.sqlstate) == ("constraint", "23505")
    assert query_rows(source_database, "SELECT sink_key, execution_id, step FROM noetl_sink") == [
        ("k", "1", "s")
    ]


def test_doubles_are_fine_when_the_author_says_so(source_database: str) -> None:
    source = postgres(source_database, query="SELECT id + {{ more }} AS id, name FROM source")
    target = postgres(source_database, table="target", at_least_once=True)
    for more in (0, 100):
        assert value(transfer_rows(source, target, scope={"more": more}))["written"] == 30
    assert query_rows(
        source_database, "SELECT count(*), to_regclass('noetl_sink') FROM target"
    ) == [(60, None)]


def test_an_upsert_writes_over_and_the_later_of_two_counts(source_database: str) -> None:
    target = postgres(source_database, table="target", mode="upsert", key=["id"])
    query = "SELECT * FROM (VALUES (1, 'a'), (2, 'b'), (1, 'c')) v (id, name)"
    for _ in range(2):
        assert value(transfer_rows(postgres(source_database, query=query), target))["written"] == 2
    assert query_rows(source_database, "SELECT id, name FROM target ORDER BY id") == [
        (1, "c"),
        (2, "b"),
    ]


def test_replacing_leaves_what_came_last(source_database: str) -> None:
    target = postgres(source_database, table="target", mode="replace")
    for last in (30, 7):
        query = "SELECT * FROM source WHERE id <= {{ last }}"
        assert (
            value(
                transfer_rows(postgres(source_database, query=query), target, scope={"last": last})
            )["written"]
            == last
        )
    assert query_rows(source_database, "SELECT count(*) FROM target") == [(7,)]


def test_what_fails_leaves_nothing(source_database: str) -> None:
    query = "SELECT id, name, 'no date' AS day FROM source"
    found = failure(
        transfer_rows(
            postgres(source_database, query=query), postgres(source_database, table="target")
        )
    )
    assert (found.kind, found.sqlstate) == ("data", "22007")
    assert query_rows(source_database, "SELECT count(*) FROM target") == [(0,)]
    assert query_rows(source_database, "SELECT count(*) FROM noetl_sink") == [(0,)]
    missing = failure(
        transfer_rows(
            postgres(source_database, query="SELECT 1 AS a"),
            postgres(source_database, table="nowhere"),
        )
    )
    assert missing.sqlstate == "42P01"


def test_without_the_right_to_remember_an_insert_says_what_to_do(source_database: str) -> None:
    """Where tables go first belongs to the system."""
    target = {
        **postgres(source_database, table="public.target"),
        "auth": {"dsn": source_database, "options": "-c search_path=pg_catalog"},
    }
    found = failure(transfer_rows(postgres(source_database, query="SELECT * FROM source"), target))
    assert found.code == "SINK_FORBIDDEN"
    assert "at_least_once" in found.message


def test_postgres_to_a_file_and_back(source_database: str, tmp_path: Path) -> None:
    columns = "id, name, amount, note, day, even, f"
    for kind in ("parquet", "csv", "json"):
        path = str(tmp_path / "deep" / f"rows.{kind}")
        query = postgres(source_database, query=f"SELECT {columns} FROM source")
        assert (
            value(transfer_rows(query, {"kind": "file", "path": path, "mode": "replace"}))[
                "written"
            ]
            == 30
        )
        target = postgres(source_database, table="target", mode="replace")
        assert value(transfer_rows({"kind": "file", "path": path}, target))["written"] == 30
        both = [
            query_rows(source_database, f"SELECT {columns} FROM {name} ORDER BY id")
            for name in ("target", "source")
        ]
        assert both[0] == both[1]


EVERY = """CREATE TABLE every (id int, t text, code text, n numeric(20, 2), any_n numeric, d date, at timestamptz, tm time,
    b bytea, u uuid, j jsonb, a int[], w text[], bs bytea[], deep int[], span interval, f float8, o bool)"""
FILLED = r"""INSERT INTO every VALUES
    (1, '', '007', 12345678901234567.13, 0.10000000000000000001, '2024-02-29', '2024-02-29 10:00:00.000001+02', '10:00',
     '\x0001', gen_random_uuid(), '{"a": [1, null]}', '{1,NULL,2}', '{"x \"y",NULL,""}', '{"\\x00ff"}', '{{1,2},{3,4}}', '1 day',
     'NaN', true),
    (2, E'x,"y\n', NULL, -0.5, 1, NULL, '2999-12-31 23:59:59+00', NULL, '', NULL, '"text"', '{}', NULL, NULL, NULL, '3 s',
     'Infinity', false),
    (3, NULL, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'null', NULL, NULL, NULL, NULL, NULL, NULL, NULL)"""


@pytest.mark.parametrize("kind", ["csv", "parquet", "json", "jsonl"])
@pytest.mark.parametrize("columns", ["*", "id", "t", "code", "id, a", "id, b, at"])
def test_a_file_goes_back_into_the_table_it_came_from(
    database: str, tmp_path: Path, kind: str, columns: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(EVERY)
        connection.execute(FILLED.encode())
        connection.execute("CREATE TABLE target (LIKE every)")
        if kind.startswith("json"):  # where null is null
            connection.execute("UPDATE every SET j = NULL WHERE j = 'null'")
    path = str(tmp_path / f"every.{kind}")
    query = postgres(database, query=f"SELECT {columns} FROM every")
    assert (
        value(transfer_rows(query, {"kind": "file", "path": path, "mode": "replace"}))["written"]
        == 3
    )
    back = value(
        transfer_rows(
            {"kind": "file", "path": path}, postgres(database, table="target", mode="replace")
        )
    )
    assert back["written"] == 3
    both = f"(SELECT {columns} FROM every EXCEPT SELECT {columns} FROM target)"
    assert query_rows(database, both) == []


def test_a_text_in_a_file_of_json_is_what_it_says(database: str, tmp_path: Path) -> None:
    """Earlier rows do not matter: neither a number nor a date is guessed."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE target (id int, n numeric, f float8, t text, j jsonb, js jsonb[])"
        )
    rows = [{"id": 1, "n": 5, "f": 0.5, "t": "2024-1-5", "j": "1", "js": ["x", {"a": 1}]}] * 25_000
    last = {
        "id": 2,
        "n": "0.10000000000000000001",
        "f": "nan",
        "t": 'a "b"',
        "j": {"a": "1"},
        "js": None,
    }
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, [*rows, last])))
    target = postgres(database, table="target")
    assert value(transfer_rows({"kind": "file", "path": str(path)}, target))["written"] == 25_001
    found = query_rows(
        database,
        "SELECT id, n::text, f::text, t, j::text, js::text FROM target GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1",
    )
    assert found == [
        (1, "5", "0.5", "2024-1-5", '"1"', r'{"\"x\"","{\"a\": 1}"}'),
        (2, "0.10000000000000000001", "NaN", 'a "b"', '{"a": "1"}', None),
    ]


def test_moments_beyond_the_calendar_arrive(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE target (d date, at timestamptz, t time, ds date[])")
    query = """SELECT d, d::TIMESTAMPTZ AS at, time '24:00:00' AS t, [d] AS ds FROM (VALUES
               (date 'infinity'), ('-infinity'), ('20000-01-01'), ('0044-03-15 (BC)'), ('2030-01-02')) v (d)"""
    rows: dict[str, Any] = {"kind": "duckdb", "query": f"SET TimeZone = 'UTC'; {query}"}
    files = [str(tmp_path / f"rows.{kind}") for kind in ("parquet", "csv", "jsonl")]
    for path in files:
        assert (
            value(transfer_rows(rows, {"kind": "file", "path": path, "mode": "replace"}))["written"]
            == 5
        )
    days = ["infinity", "-infinity", "20000-01-01", "0044-03-15 BC", "2030-01-02"]
    for source in (rows, *({"kind": "file", "path": path} for path in files)):
        assert (
            value(transfer_rows(source, postgres(database, table="target", mode="replace")))[
                "written"
            ]
            == 5
        )
        found = query_rows(
            database,
            "SELECT d::text, at = d::timestamp AT TIME ZONE 'UTC', t::text, ds[1] = d FROM target",
        )
        assert found == [(day, True, "24:00:00", True) for day in days]


def test_arrays_may_be_text_as_postgres_writes_it(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE target (bs bytea[], js jsonb[], a int[])")
    literals = r"""SELECT '{"\\x00ff",NULL}' AS bs, '{"{\"a\": 1}"}' AS js, '[0:1]={1,2}' AS a"""
    assert (
        value(
            transfer_rows(postgres(database, query=literals), postgres(database, table="target"))
        )["written"]
        == 1
    )
    assert query_rows(database, "SELECT bs, js, a[0] FROM target") == [
        ([b"\x00\xff", None], [{"a": 1}], 1)
    ]


def test_an_empty_query_is_a_file_with_columns(source_database: str, tmp_path: Path) -> None:
    query = postgres(source_database, query="SELECT id, day, span, doc FROM source WHERE false")
    for kind in ("csv", "parquet"):
        assert (
            value(
                transfer_rows(
                    query, {"kind": "file", "path": str(tmp_path / f"no.{kind}"), "mode": "replace"}
                )
            )["written"]
            == 0
        )
    assert (tmp_path / "no.csv").read_text() == "id,day,span,doc\n"
    found = pq.read_schema(tmp_path / "no.parquet")
    assert found.types == [pa.int32(), pa.date32(), pa.duration("us"), pa.json_()]
    back = transfer_rows(
        {"kind": "file", "path": str(tmp_path / "no.csv")},
        postgres(source_database, table="target", mode="replace"),
    )
    assert value(back)["written"] == 0


def test_what_are_no_bytes_is_said_with_the_column(source_database: str, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("id,raw\n1,/wA=\n2,\\xff00\n3,no bytes\n")
    found = failure(
        transfer_rows(
            {"kind": "file", "path": str(tmp_path / "bad.csv")},
            postgres(source_database, table="target"),
        )
    )
    assert (found.code, "'raw'" in found.message) == ("SINK_VALUE", True)


def test_files_are_named_by_the_call(source_database: str, tmp_path: Path) -> None:
    source = postgres(source_database, query="SELECT id FROM source")
    for path, name in (("all", "{}.csv"), ("all/rows.csv", "rows-{}.csv")):
        target = {"kind": "file", "path": str(tmp_path / path), "format": "csv"}
        for key, written in (("a", 30), ("b", 30), ("a", 0)):
            place = str(tmp_path / "all" / name.format(key))
            assert value(transfer_rows(source, target, key=key)) == {
                "read": 30, "written": written, "repeated": not written, "path": place,
            }  # fmt: skip
            assert Path(place).read_text().splitlines()[0] in ("id", '"id"')
    assert not [path for path in (tmp_path / "all").iterdir() if path.name.startswith(".")]


def test_postgres_to_duckdb(source_database: str, tmp_path: Path) -> None:
    database = str(tmp_path / "d.duckdb")
    source = postgres(
        source_database, query="SELECT id, name, amount, at, uid, doc, span FROM source"
    )
    insert = {"kind": "duckdb", "database": database, "table": "t"}
    upsert = {**insert, "mode": "upsert", "key": ["id", "name"]}
    assert [value(transfer_rows(source, insert))["written"] for _ in range(2)] == [30, 0]
    assert value(transfer_rows(source, upsert))["written"] == 30
    with duckdb.connect(database) as connection:
        described = {name: kind for name, kind, *_ in connection.execute("DESCRIBE t").fetchall()}
        assert connection.execute("SELECT count(*), sum(amount)::DOUBLE FROM t").fetchall() == [
            (30, 58.125)
        ]
    assert described == {
        "id": "INTEGER", "name": "VARCHAR", "amount": "DECIMAL(9,3)", "at": "TIMESTAMP WITH TIME ZONE", "uid": "UUID",
        "doc": "JSON", "span": "INTERVAL",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "query"),
    [
        ("int", "SELECT 1.5::float8 AS v"), ("smallint", "SELECT 2.7::numeric(5, 1) AS v"), ("int", "SELECT 2.7::numeric AS v"),
        ("int", "SELECT '1.5' AS v"), ("int", "SELECT '1.5'::jsonb AS v"), ("boolean", "SELECT 5 AS v"),
        ("boolean", "SELECT '5'::jsonb AS v"), ("int[]", "SELECT array[1, 1.5]::float8[] AS v"), ("int[]", "SELECT '[1.5]' AS v"),
        ("struct(k int)", "SELECT '{\"k\": 1.5}'::jsonb AS v"),
    ],
)  # fmt: skip
def test_transfer_to_duckdb_refuses_a_number_that_its_column_would_change(
    database: str, tmp_path: Path, kind: str, query: str
) -> None:
    file = str(tmp_path / "d.duckdb")
    with duckdb.connect(file) as connection:
        connection.execute(f'CREATE TABLE t ("V" {kind})')
        connection.execute("INSERT INTO t VALUES (NULL)")
    target = {"kind": "duckdb", "database": file, "table": "t", "mode": "replace"}
    found = failure(transfer_rows(postgres(database, query=query), target))
    assert found.code == "SINK_VALUE"
    assert found.message.startswith("column 'v': a value is ")
    with duckdb.connect(file) as connection:
        assert connection.execute("FROM t").fetchall() == [(None,)]


def test_transfer_to_duckdb_stores_whole_numbers_in_integer_columns(
    database: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "d.duckdb")
    with duckdb.connect(file) as connection:
        connection.execute("CREATE TABLE t (a int, b smallint, c int, d int[], e boolean, f int)")
    query = """SELECT 2::float8 AS a, 3.0::numeric(5, 1) AS b, '4' AS c, '[5, 6.0]'::jsonb AS d, 1 AS e, '7.0'::numeric AS f
               UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL"""
    value(
        transfer_rows(
            postgres(database, query=query), {"kind": "duckdb", "database": file, "table": "t"}
        )
    )
    with duckdb.connect(file) as connection:
        assert connection.execute("FROM t ORDER BY a NULLS LAST").fetchall() == [
            (2, 3, 4, [5, 6], True, 7),
            (None,) * 6,
        ]


def test_rows_of_a_step_and_of_duckdb_to_postgres(source_database: str) -> None:
    target = postgres(source_database, table="target", mode="upsert", key=["id"])
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    assert (
        value(transfer_rows({"ref": "{{ load }}"}, target, scope={"load": {"rows": rows}}))[
            "written"
        ]
        == 2
    )
    query = "SELECT range::INT AS id, 'd' AS name FROM range({{ n }})"
    assert (
        value(transfer_rows({"kind": "duckdb", "query": query}, target, scope={"n": 2}))["written"]
        == 2
    )
    assert query_rows(source_database, "SELECT id, name FROM target ORDER BY id") == [
        (0, "d"),
        (1, "d"),
        (2, None),
    ]
    assert (
        failure(transfer_rows({"ref": "{{ load }}"}, target, scope={"load": 7})).code
        == "TRANSFER_SOURCE"
    )


def test_many_rows(source_database: str, tmp_path: Path) -> None:
    query = "SELECT g AS id, repeat('x', 100) || g AS name FROM generate_series(1, 60000) g"
    target = postgres(source_database, table="target", mode="replace")
    assert value(transfer_rows(postgres(source_database, query=query), target))["written"] == 60_000
    assert query_rows(
        source_database, "SELECT count(*), sum(id), max(length(name)) FROM target"
    ) == [(60_000, 1_800_030_000, 105)]


def test_what_is_asked_for_wrongly(source_database: str) -> None:
    source = postgres(source_database, query="SELECT 1 AS a")
    assert (
        failure(transfer_rows(source, postgres(source_database, table="t", mode="staged"))).code
        == "SINK_MODE"
    )
    assert (
        failure(transfer_rows(source, {"kind": "http", "url": "http://x"})).code
        == "TRANSFER_TARGET"
    )
    assert (
        failure(
            transfer_rows({"kind": "nats", "query": "x"}, postgres(source_database, table="t"))
        ).code
        == "TRANSFER_SOURCE"
    )
    assert (
        failure(
            transfer_rows({"kind": "file", "path": "a.xls"}, postgres(source_database, table="t"))
        ).code
        == "TRANSFER_SOURCE"
    )
    assert failure(transfer_rows(source, {"kind": "file", "path": "a.xls"})).code == "SINK_FORMAT"
    assert (
        failure(
            transfer_rows(
                postgres(source_database, query="CREATE TABLE y ()"),
                postgres(source_database, table="t"),
            )
        ).code
        == "TRANSFER_SOURCE"
    )


# ---- keys ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query", ["SELECT 1 AS id, 'a' AS name UNION ALL SELECT NULL, 'b'", "SELECT 'a' AS name"]
)
@pytest.mark.parametrize("kind", ["postgres", "duckdb"])
def test_upsert_by_transfer_refuses_a_row_without_a_key(
    database: str, tmp_path: Path, kind: str, query: str
) -> None:
    table = "CREATE TABLE t (id int UNIQUE, name varchar)"
    file = str(tmp_path / "d.duckdb")
    with psycopg.connect(database, autocommit=True) as connection, duckdb.connect(file) as local:
        connection.execute(table.encode())
        local.execute(table)
    target = {"duckdb": {"kind": "duckdb", "database": file}, "postgres": postgres(database)}[kind]
    upsert = {**target, "table": "t", "mode": "upsert", "key": ["id"]}
    found = failure(transfer_rows(postgres(database, query=query), upsert))
    assert found.code == "SINK_KEY_MISSING"
    assert found.message == "t: a row has no value for 'id', which is part of the key"
    with duckdb.connect(file) as local:
        assert query_rows(database, "SELECT * FROM t") == local.execute("FROM t").fetchall() == []


def test_upsert_by_transfer_says_which_unique_index_the_table_needs(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int, name text)")
    upsert = postgres(database, table="t", mode="upsert", key=["id"])
    found = failure(transfer_rows(postgres(database, query="SELECT 1 AS id, 'a' AS name"), upsert))
    assert found.code == "SINK_KEY_NOT_UNIQUE"
    assert (
        found.message == 't has no unique index on its key (id): CREATE UNIQUE INDEX ON "t" ("id")'
    )


# ---- CSV that cannot be split ----------------------------------------------------------------------------------------------

RAGGED = {
    "a line with less": ("id,zip\n1,2\n3\n", "line 3 has 1, line 1 has 2 (separator ',')"),
    "a line with more": ("id,zip\n1,2\n4,5,6\n", "line 3 has 3, line 1 has 2 (separator ',')"),
    "both": ("id;zip\n1;2\n3\n4;5;6\n", "line 3 has 1, line 1 has 2 (separator ';')"),
    "a value of two lines": ('id,zip\n"1\n1",2\n3\n', "line 4 has 1, line 1 has 2 (separator ',')"),
}


@pytest.mark.parametrize("kind", ["postgres", "duckdb", "file"])
@pytest.mark.parametrize("case", RAGGED)
def test_csv_with_lines_of_different_length_is_refused(
    source_database: str, tmp_path: Path, case: str, kind: str
) -> None:
    text, place = RAGGED[case]
    file = tmp_path / "zips.csv"
    file.write_text(text)
    targets = {
        "postgres": postgres(source_database, table="target"),
        "duckdb": {"kind": "duckdb", "database": str(tmp_path / "d.duckdb"), "table": "t"},
        "file": {"kind": "file", "path": str(tmp_path / "out.parquet"), "mode": "replace"},
    }
    found = failure(transfer_rows({"kind": "file", "path": str(file)}, targets[kind]))
    cause = "cannot be split into columns, because its lines have different numbers of fields"
    assert (found.code, found.message) == ("TRANSFER_SOURCE", f"{file} {cause}: {place}")


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("id\n1\n2\n", ["id"]),
        ('"a,b"\n1\n2\n', ["a,b"]),
        ('note\n"hello, x"\nplain\n', ["note"]),
        ("id,zip\n", ["id", "zip"]),
        ("id\tzip\r\n1\t2\r\n", ["id", "zip"]),
        ("Report of May\n\nid,zip\n1,2\n3,4\n", ["id", "zip"]),
    ],
)
def test_csv_that_can_be_split_is_read(tmp_path: Path, text: str, columns: list[str]) -> None:
    file = tmp_path / "some.csv"
    file.write_text(text, newline="")
    out = tmp_path / "out.parquet"
    value(
        transfer_rows(
            {"kind": "file", "path": str(file)},
            {"kind": "file", "path": str(out), "mode": "replace"},
        )
    )
    assert pq.read_schema(out).names == columns


def test_a_csv_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = failure(
        transfer_rows(
            {"kind": "file", "path": str(tmp_path / "no.csv")},
            {"kind": "file", "path": str(tmp_path / "out.csv")},
        )
    )
    assert "no.csv" in found.message
