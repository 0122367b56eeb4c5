"""What a step prints: lines, numbered per attempt, stored by reference in parts."""

import re

import msgspec
from msgspec import Struct

from noetl.model.ids import CommandId, Micros

_KEY = re.compile(r"(\w+)-([0-9]{1,9})-([0-9]{1,9})(?:-l[0-9]+)?", re.ASCII)


class Line(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`seq` counts what the attempt printed: a gap is what was left out, and a line of the stream `noetl` says how much."""

    seq: int
    at: Micros
    stream: str
    line: str
    task: str = ""
    item: int | None = None  # of a loop


class LogPartKey(Struct, frozen=True):
    """Whose part it is, and which one."""

    command_id: CommandId
    attempt: int
    part: int


def part_key(command: str, attempt: int, launch: int, part: int) -> str:
    """Derived from who printed it, so that storing it again changes nothing. `launch`: the attempt was begun again here."""
    return f"{command}-{attempt}-{part}" + ("" if launch == 1 else f"-l{launch}")


def made_by(key: str) -> LogPartKey | None:
    """None: not a key of `part_key`."""
    found = _KEY.fullmatch(key)
    return None if found is None else LogPartKey(CommandId(found[1]), int(found[2]), int(found[3]))


encode = msgspec.json.encode
decode = msgspec.json.Decoder(list[Line]).decode
