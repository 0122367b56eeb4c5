"""The table `noetl_sink` in a target's database: the keys of calls that have stored their rows.

A call stores its key in the transaction that stores its rows.
"""

CREATE_KEY_TABLE = """
CREATE TABLE IF NOT EXISTS noetl_sink (
    sink_key text PRIMARY KEY, execution_id text NOT NULL, step text NOT NULL, stored_at timestamptz NOT NULL DEFAULT now())
"""
KEY_TABLE_FORBIDDEN = (
    "an insert remembers in the table noetl_sink what it has stored, and may not do so here: grant that, use mode: upsert with a "
    "key, or say at_least_once: true if doubled rows are fine"
)


def make_key_insert(*marks: str) -> str:
    """The statement that stores a key. It adds no row if the key is stored already.

    `marks` are the placeholders for the call's key, its execution and its step.
    """
    return f"INSERT INTO noetl_sink (sink_key, execution_id, step) VALUES ({', '.join(marks)}) ON CONFLICT DO NOTHING"
