"""The texts of the log and of its tables have no NUL character, because Postgres cannot store it.

Everything that derives a text from data, and everything that stores one, uses the same replacement:
what is stored is equal to what the log folds to. JSON documents need it not: they write NUL as
`\\u0000`.
"""

REPLACEMENT = "\ufffd"


def replace_nul(text: str) -> str:
    """The text as it can be stored. Returns the same object if it has no NUL."""
    return text.replace("\0", REPLACEMENT)
