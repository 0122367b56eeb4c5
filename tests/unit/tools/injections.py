"""What an attacker would give as a value, and that a table in reach of it stays as it is. The same for every database."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from noetl.tools.port import Outcome
from tests.unit.tools.calls import value

PAYLOADS = (
    (Path(__file__).with_name("sql_injections.txt"))
    .read_text(encoding="utf-8")
    .removesuffix("\n")
    .split("\n")
)
Ask = Callable[..., Awaitable[Outcome]]
PLACES = (
    "SELECT name FROM canary WHERE name = {{ x }}",
    "SELECT name FROM canary WHERE name = '{{ x }}'",
    "SELECT name FROM canary WHERE name = 'a{{ x }}b'",
    "SELECT name FROM canary WHERE name = $x",
    "SELECT name FROM canary WHERE name = $$ {{ x }} $$ -- {{ x }}\n",
    "SELECT name FROM canary WHERE name IN ({% for y in [x, x] %}{{ y }}{% if not loop.last %}, {% endif %}{% endfor %})",
    "SELECT name FROM canary WHERE name = /* {{ x }} */ 'none'",
)


async def leave_the_canary_alone(ask: Ask) -> None:
    """Every payload in every place finds nothing, changes nothing, and is written as it is."""
    await ask(
        "CREATE TABLE canary (name text, secret text); CREATE TABLE found (x text); CREATE TABLE written (x text)"
    )
    await ask("INSERT INTO canary VALUES ('one', 'hush'), ('two', 'still')")
    queries = [f"INSERT INTO found {place}" for place in PLACES] + [
        "INSERT INTO written VALUES ('{{ x }}')"
    ]
    for payload in PAYLOADS:
        value(await ask(queries, {"x": payload}, params={"x": payload}))
    assert value(await ask("SELECT * FROM found"))["rows"] == []
    rows = value(await ask("SELECT * FROM canary ORDER BY name"))["rows"]
    assert rows == [{"name": "one", "secret": "hush"}, {"name": "two", "secret": "still"}]
    written = value(await ask("SELECT x FROM written"))["rows"]
    assert sorted(row["x"] for row in written) == sorted(PAYLOADS)


async def come_back_unchanged(ask: Ask, x: Any) -> None:
    query = "SELECT {{ x }} AS a, '{{ x }}' AS b, $x AS c, '<{{ x }}>' AS d, $q${{ x }}$q$ AS e"
    [row] = value(await ask(query, {"x": x}, params={"x": x}))["rows"]
    assert row == {"a": x, "b": x, "c": x, "d": f"<{x}>", "e": x}
