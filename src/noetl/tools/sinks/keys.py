"""The table in which a target remembers what it has been given: whoever finds its key there adds nothing.

The statements are understood by Postgres and DuckDB alike."""

MAKE_KEYS = """
CREATE TABLE IF NOT EXISTS noetl_sink (
    sink_key text PRIMARY KEY, execution_id text NOT NULL, step text NOT NULL, stored_at timestamptz NOT NULL DEFAULT now())
"""


def keep_key(first: str, second: str, third: str) -> str:
    """With places as the driver writes them."""
    return f"INSERT INTO noetl_sink (sink_key, execution_id, step) VALUES ({first}, {second}, {third}) ON CONFLICT DO NOTHING"
