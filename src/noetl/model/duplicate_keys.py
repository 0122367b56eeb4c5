"""Find keys that occur twice in one JSON object. Parsers silently keep the last value."""

import json
from typing import Any


def find_duplicate_key(text: str | bytes) -> str | None:
    """The first key that occurs twice in one object of a JSON text. None if there is none."""
    duplicates: list[str] = []

    def check_object(pairs: list[tuple[str, Any]]) -> None:
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                duplicates.append(name)
                return
            names.add(name)

    json.loads(text, object_pairs_hook=check_object)
    if not duplicates:
        return None
    return duplicates[0]
