"""Where a result comes from, as its envelope says it: the tool that made it, and the input that the tool was given."""

import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from noetl.model.codec import encode
from noetl.tools.port import Tool

INLINE = 256  # bytes of an input that stands in the envelope itself


def made_with(kind: str, tool: Tool | None) -> dict[str, str]:
    """`meta.tool`: the same for every result of a kind, so it is made once."""
    return _made_with(kind, (type(tool).__module__ if tool is not None else "noetl").partition(".")[0])


@cache
def _made_with(kind: str, package: str) -> dict[str, str]:
    runtime = f"{sys.implementation.name} {'.'.join(map(str, sys.version_info[:3]))}"
    return {"kind": kind, "version": _version(package), "noetl": _version("noetl"), "runtime": runtime}


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a tool that was never installed, or whose package has another name
        return ""


def is_small(given: dict[str, Any]) -> bool:
    """Scalars alone, and few of them."""
    if not all(part is None or isinstance(part, bool | int | float | str) for part in given.values()):
        return False
    return len(encode(given)) <= INLINE
