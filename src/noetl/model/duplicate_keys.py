"""Keys that stand twice in one JSON object. Parsers keep the last value and say nothing: most likely a slip."""

import json
from typing import Any


def first_duplicate_key(text: str | bytes) -> str | None:
    """The first key that is found twice in one object of the text, which is JSON; None when there is none."""
    duplicates: list[str] = []

    def check_object(pairs: list[tuple[str, Any]]) -> None:
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                duplicates.append(name)
                return
            names.add(name)

    json.loads(text, object_pairs_hook=check_object)
    return duplicates[0] if duplicates else None
