"""`noetl audit` on a real database: the trail of commands, and the check of its chain."""

import psycopg

from noetl.embedded import EmbeddedPostgres
from tests.stack import NoetlCommand


def test_the_trail_of_commands_is_listed_and_verified(noetl: NoetlCommand) -> None:
    embedded = EmbeddedPostgres(noetl.home)
    dsns = embedded.ensure_postgres()
    try:
        made = noetl.json("token", "create", "ci", "--role", "viewer")
        noetl("token", "revoke", made["token_id"])
        rows = noetl.json("audit", "list", "--operation", "token")
        assert [(row["operation"], row["object"], row["by"]) for row in rows] == [
            ("token.revoke", made["token_id"], "local"),
            ("token.create", made["token_id"], "local"),
        ]
        table = noetl("audit", "list", "--limit", "1").out
        assert "token.revoke" in table
        whole = noetl("audit", "verify")
        head = whole.out.split()[-1]
        assert (whole.code, whole.out) == (0, f"2 entries are whole\nhead {head}\n"), whole.err
        noetl("token", "create", "other", "--role", "viewer")
        assert noetl("audit", "verify", "--expect", head).code == 0
        with psycopg.connect(dsns.control) as connection:
            connection.execute(
                "update noetl.audit set entry = replace(entry, 'ci', 'cd') where seq = 1"
            )
        broken = noetl("audit", "verify", "--expect", head)
        assert (broken.code, broken.out.splitlines()[0]) == (
            1,
            "the audit trail is broken: entry 1 was changed, or another entry was put in its place",
        )
        assert noetl.json("audit", "verify", code=1)["fault"]["seq"] == 1
    finally:
        embedded.stop_postgres()
