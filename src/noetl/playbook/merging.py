"""Merges maps: a payload over a workload, a page's cursor over the one before it."""

from collections.abc import Mapping
from typing import Any


def merge_deep(base: Any, given: Any) -> Any:
    """Merge deeply: maps are merged, any other value replaces the base."""
    if not isinstance(base, dict) or not isinstance(given, dict):
        return given
    merged: dict[Any, Any] = {}
    for key in list_keys_of_both(base, given):
        if key not in given:
            merged[key] = base[key]
        elif key not in base:
            merged[key] = given[key]
        else:
            merged[key] = merge_deep(base[key], given[key])
    return merged


def list_keys_of_both(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of the first map, then those that only the second map has."""
    return list({**first, **second})
