"""The table `noetl_sink` of a target's database: calls that have stored what they had to, each in the transaction that did."""

MAKE = """
CREATE TABLE IF NOT EXISTS noetl_sink (
    sink_key text PRIMARY KEY, execution_id text NOT NULL, step text NOT NULL, stored_at timestamptz NOT NULL DEFAULT now())
"""
FORBIDDEN = (
    "an insert remembers in the table noetl_sink what it has stored, and may not do so here: grant that, use mode: upsert with a "
    "key, or say at_least_once: true if doubled rows are fine"
)


def keep(*marks: str) -> str:
    """Adds no row when the call is there already; the marks stand for its key, its execution and its step."""
    return f"INSERT INTO noetl_sink (sink_key, execution_id, step) VALUES ({', '.join(marks)}) ON CONFLICT DO NOTHING"
