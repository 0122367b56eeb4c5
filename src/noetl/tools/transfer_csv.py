"""Check that all lines of a CSV file have the same number of fields.

DuckDB guesses how a file is split. When no separator gives every line as many fields as the first one, it rarely fails: it takes
each line for one value, or begins at a later line and leaves out those before, the header with them. Such a file is refused here.
"""

import csv
from collections.abc import Iterator, Sequence
from itertools import islice

import duckdb

from noetl.tools.duckdb import SETTINGS, literal
from noetl.tools.sql import SqlError

SEPARATORS = (",", ";", "\t", "|")  # those that DuckDB tries
LOOKED_AT = 20_480  # lines: as many as DuckDB guesses from
_RAW = "columns = {'line': 'VARCHAR'}, delim = chr(1), quote = '', escape = '', header = false, auto_detect = false"


def check_columns(path: str, options: str) -> None:
    """Refuse files at this path that `read_csv` with these options would split into wrong columns."""
    with duckdb.connect(config=SETTINGS) as connection:
        try:
            files = [
                file
                for (file,) in connection.execute("SELECT file FROM glob(?)", [path]).fetchall()
            ]
            for file in files:
                _check_file(connection, file, options)
        except (duckdb.Error, csv.Error):  # the transfer itself reports this error
            return


def _check_file(connection: duckdb.DuckDBPyConnection, file: str, options: str) -> None:
    separator, skipped, columns = _guess(connection, file, options)
    if columns > 1 and not skipped:
        return
    lines = _lines(connection, file, skipped + 1)
    if columns == 1 and lines:
        suspects = [each for each in SEPARATORS if _fields(lines[-1], each) > 1]
    else:
        suspects = (
            [separator] if any(_fields(line, separator) > 1 for line in lines[:skipped]) else []
        )
    if suspects:
        raise SqlError(
            "TRANSFER_SOURCE",
            _message(file, suspects[0], _lines(connection, file, LOOKED_AT)),
            "data",
        )


def _guess(connection: duckdb.DuckDBPyConnection, file: str, options: str) -> tuple[str, int, int]:
    """What DuckDB takes for the separator, how many lines it leaves out at the top, and how many columns it finds."""
    query = f"SELECT Delimiter, SkipRows, len(Columns) FROM sniff_csv({literal(file)}, {options})"  # noqa: S608 - quoted
    try:
        [(separator, skipped, columns)] = connection.execute(query).fetchall()
    except duckdb.InvalidInputException:  # it finds none
        return "", 0, 1
    return separator, skipped, columns


def _lines(connection: duckdb.DuckDBPyConnection, file: str, count: int) -> list[str]:
    found = connection.execute(f"SELECT line FROM read_csv({literal(file)}, {_RAW}) LIMIT {count}")  # noqa: S608 - quoted
    return [line or "" for (line,) in found.fetchall()]


def _fields(line: str, separator: str) -> int:
    return len(next(csv.reader([line], delimiter=separator), []))


def _message(file: str, separator: str, lines: Sequence[str]) -> str:
    counts = _counts(lines, separator)
    first, header = next(counts)
    shown = "tab" if separator == "\t" else separator
    other = next(((line, count) for line, count in counts if count != header), None)
    if other is None:
        return f"{file} cannot be split into columns (separator {shown!r}): check its quotes"
    where = f"line {other[0]} has {other[1]}, line {first} has {header} (separator {shown!r})"
    return f"{file} cannot be split into columns, because its lines have different numbers of fields: {where}"


def _counts(lines: Sequence[str], separator: str) -> Iterator[tuple[int, int]]:
    """The number of the line at which a record ends, and how many fields the record has. Empty lines are none."""
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator)
    yield from ((reader.line_num, len(record)) for record in islice(reader, len(lines)) if record)
