"""Provenance in the envelope of a result: the tool that made it, and the input of that tool."""

import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from noetl.model.codec import encode
from noetl.tools.port import Tool

MAX_INLINE_INPUT_BYTES = 256  # bytes of an input that stands in the envelope itself
PER_ITEM = "per item"  # in the envelope of a loop: an entry that its items do not share


def describe_tool(kind: str, tool: Tool | None) -> dict[str, str]:
    """`meta.tool`. It is the same for every result of a kind, so it is made once."""
    module = "noetl" if tool is None else type(tool).__module__
    return _describe_kind(kind, module.partition(".")[0])


@cache
def _describe_kind(kind: str, package: str) -> dict[str, str]:
    runtime = f"{sys.implementation.name} {'.'.join(map(str, sys.version_info[:3]))}"
    return {
        "kind": kind,
        "version": _package_version(package),
        "noetl": _package_version("noetl"),
        "runtime": runtime,
    }


@cache
def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # not installed, or the package has another name
        return ""


def merge_provenance(items: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """`meta.provenance` of items that are stored together.

    The row of an item has its own; the event has only the entries that all items share.
    """
    shared: dict[str, Any] = {}
    for provenance in items:
        for name, value in provenance.items():
            known = shared.setdefault(name, value)
            if known != value:
                shared[name] = PER_ITEM
    return {name: value if _is_scalar(value) else PER_ITEM for name, value in shared.items()}


def is_small_input(task_input: dict[str, Any]) -> bool:
    """Whether the input has only scalars, and fits into an envelope."""
    if not all(map(_is_scalar, task_input.values())):
        return False
    return len(encode(task_input)) <= MAX_INLINE_INPUT_BYTES


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
