"""The keys of maps that name secrets. Their values are never shown, and recorded only in data."""

from functools import lru_cache
from typing import Any

SECRET_KEYS = frozenset(
    """
    password secret api_key authorization access_token refresh_token private_key client_secret
    cookie
    """.split()
)
CONTAINERS = (dict, list)
MAX_STRIPPED_DEPTH = 100  # levels of nesting that are shown


@lru_cache(maxsize=4_096)  # the same few names come with every event
def names_secret(name: Any) -> bool:
    return str(name).lower() in SECRET_KEYS


def strip_secrets(value: Any, depth: int = 0) -> Any:
    """Remove the keys that name secrets. Names must match exactly: `next_page_token` is no
    secret."""
    if not isinstance(value, CONTAINERS):
        return value
    if depth == MAX_STRIPPED_DEPTH:
        return "…"
    if isinstance(value, list):
        return [strip_secrets(part, depth + 1) for part in value]
    kept: dict[Any, Any] = {}
    for name, part in value.items():
        if names_secret(name):
            continue
        if isinstance(part, CONTAINERS):
            part = strip_secrets(part, depth + 1)
        kept[name] = part
    return kept
