"""Which keys of a map name secrets: their values are left out of whatever is shown or recorded beside the data."""

from typing import Any

KEYS = frozenset(
    "password secret api_key authorization access_token refresh_token private_key client_secret cookie".split()
)
DEEPEST = 100  # of what is shown


def stripped(value: Any, depth: int = 0) -> Any:
    """Without the keys of secrets, by their exact names: `next_page_token` is none."""
    if not isinstance(value, dict | list):
        return value
    if depth == DEEPEST:
        return "…"
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if str(name).lower() not in KEYS}
        return {
            name: stripped(part, depth + 1) if isinstance(part, dict | list) else part
            for name, part in kept.items()
        }
    return [stripped(part, depth + 1) for part in value]
