"""Checks that all lines of a CSV file have the same number of fields.

DuckDB guesses the separator of a file. If no separator gives every line the same number of fields,
it rarely fails: it reads each line as one value, or skips the first lines and the header with them.
Such a file is refused here.
"""

import csv
from collections.abc import Iterator, Sequence
from itertools import islice

import duckdb

from noetl.tools.duckdb.tool import CONNECTION_SETTINGS, format_duckdb_literal
from noetl.tools.sql.statements import SqlError

SEPARATORS = (",", ";", "\t", "|")  # the ones that DuckDB tries
SAMPLE_LINES = 20_480  # lines: the sample from which DuckDB guesses
_RAW_LINE_OPTIONS = "columns = {'line': 'VARCHAR'}, delim = chr(1), quote = '', escape = '', header = false, auto_detect = false"


def check_columns(path: str, options: str) -> None:
    """Refuse files that `read_csv` with these options would split into wrong columns."""
    with duckdb.connect(config=CONNECTION_SETTINGS) as connection:
        try:
            files = connection.execute("SELECT file FROM glob(?)", [path]).fetchall()
            for (file,) in files:
                _check_file(connection, file, options)
        except (duckdb.Error, csv.Error):  # the transfer itself reports this error
            return


def _check_file(connection: duckdb.DuckDBPyConnection, file: str, options: str) -> None:
    separator, skipped, columns = _guess_dialect(connection, file, options)
    if columns > 1 and not skipped:
        return
    lines = _read_lines(connection, file, skipped + 1)
    suspect = _find_separator(lines, separator, skipped, columns)
    if suspect is not None:
        message = _explain_split(file, suspect, _read_lines(connection, file, SAMPLE_LINES))
        raise SqlError("TRANSFER_SOURCE", message, "data")


def _find_separator(
    lines: Sequence[str],
    separator: str,
    skipped: int,
    columns: int,
) -> str | None:
    """The likely separator of a file that DuckDB splits wrongly; None if it splits it rightly."""
    if columns == 1 and lines:
        candidates = [
            candidate for candidate in SEPARATORS if _count_fields(lines[-1], candidate) > 1
        ]
        return candidates[0] if candidates else None
    for line in lines[:skipped]:
        if _count_fields(line, separator) > 1:
            return separator
    return None


def _guess_dialect(
    connection: duckdb.DuckDBPyConnection, file: str, options: str
) -> tuple[str, int, int]:
    """The separator that DuckDB guesses, the number of lines that it skips, and of columns."""
    query = f"SELECT Delimiter, SkipRows, len(Columns) FROM sniff_csv({format_duckdb_literal(file)}, {options})"  # noqa: S608 - quoted
    try:
        [(separator, skipped, columns)] = connection.execute(query).fetchall()
    except duckdb.InvalidInputException:  # it finds none
        return "", 0, 1
    return separator, skipped, columns


def _read_lines(connection: duckdb.DuckDBPyConnection, file: str, count: int) -> list[str]:
    query = f"SELECT line FROM read_csv({format_duckdb_literal(file)}, {_RAW_LINE_OPTIONS}) LIMIT {count}"  # noqa: S608 - quoted
    rows = connection.execute(query).fetchall()
    return [line or "" for (line,) in rows]


def _count_fields(line: str, separator: str) -> int:
    return len(next(csv.reader([line], delimiter=separator), []))


def _explain_split(file: str, separator: str, lines: Sequence[str]) -> str:
    counts = _iterate_field_counts(lines, separator)
    header_line, header_fields = next(counts)
    shown = "tab" if separator == "\t" else separator
    for line, fields in counts:
        if fields != header_fields:
            where = (
                f"line {line} has {fields}, line {header_line} has {header_fields} "
                f"(separator {shown!r})"
            )
            return f"{file} cannot be split into columns, because its lines have different numbers of fields: {where}"
    return f"{file} cannot be split into columns (separator {shown!r}): check its quotes"


def _iterate_field_counts(lines: Sequence[str], separator: str) -> Iterator[tuple[int, int]]:
    """The last line of each record, and its number of fields. Empty lines are not records."""
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator)
    for record in islice(reader, len(lines)):
        if record:
            yield reader.line_num, len(record)
