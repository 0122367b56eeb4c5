"""Sizes in playbooks: `512KB`, `64MB`, `2GB`, `1TB`; a bare number is bytes. A KB has 1024 bytes."""

import re

_BYTES_PER_UNIT = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SIZE_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|TB)?\s*", re.ASCII | re.IGNORECASE)
MAX_SIZE_BYTES = 1 << 50


def parse_bytes(size: str | int) -> int:
    """Parse a size into bytes. The message of ValueError shows the valid forms."""
    match = _SIZE_PATTERN.fullmatch(str(size))
    if match is None:
        raise ValueError(
            f"{size!r} is not a size: write 512KB, 64MB, 2GB or 1TB; a bare number is bytes"
        )
    unit = (match[2] or "B").upper()
    amount = round(float(match[1]) * _BYTES_PER_UNIT[unit])
    if not 0 < amount <= MAX_SIZE_BYTES:
        raise ValueError(f"{size!r} is not between one byte and 1024 TB")
    return amount


def write_bytes(size: int) -> str:
    """Write a size in the largest unit of which it has at least one, with one decimal at most."""
    for unit, unit_bytes in reversed(_BYTES_PER_UNIT.items()):
        if size >= unit_bytes:
            return f"{round(size / unit_bytes, 1):g} {unit}"
    return f"{size} B"
