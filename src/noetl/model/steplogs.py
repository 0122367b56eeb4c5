"""The output of a step: lines, numbered per attempt and stored by reference in parts."""

import re

import msgspec
from msgspec import Struct

from noetl.model.ids import CommandId, Micros

_KEY = re.compile(r"(\w+)-([0-9]{1,9})-([0-9]{1,9})(?:-l[0-9]+)?", re.ASCII)


class Line(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A printed line. `seq` counts the lines of the attempt. A gap in it means omitted lines; a
    line of the stream `noetl` says how many."""

    seq: int
    at: Micros
    stream: str
    line: str
    task: str = ""
    item: int | None = None  # of a loop


class LogPartKey(Struct, frozen=True):
    """The attempt that printed a part, and the number of the part."""

    command_id: CommandId
    attempt: int
    part: int


def make_log_part_key(command: str, attempt: int, launch: int, part: int) -> str:
    """The key of a part. It names the attempt, so storing a part again changes nothing. `launch`
    counts how often the attempt was begun here."""
    key = f"{command}-{attempt}-{part}"
    if launch != 1:
        key += f"-l{launch}"
    return key


def parse_log_part_key(key: str) -> LogPartKey | None:
    """Parse the key of a log part. None if it is another key."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    return LogPartKey(CommandId(match[1]), int(match[2]), int(match[3]))


encode = msgspec.json.encode
decode = msgspec.json.Decoder(list[Line]).decode
