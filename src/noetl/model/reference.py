"""References: where a payload lives.

Only `parse_uri` reads a `noetl://` URI, and only `Address` writes one.
"""

import re
from functools import lru_cache
from typing import Any, Literal

from msgspec import Struct

from noetl.model.errors import BadReference
from noetl.model.ids import CommandId, ExecutionId, RefId, derive_id

Home = Literal["object_store", "kv", "db", "disk", "memory", "eventlog"]
Scope = Literal["step", "execution", "workflow", "permanent"]
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}", re.ASCII)
_NUMBER = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_KEY = re.compile(
    r"(\w+)-([0-9]{1,9})-(.+?)(?:\.r([0-9]{1,9}))?(?:\.t[0-9]{1,9})?(?:\.p([0-9]{1,9}))?(?:-l[0-9]+)?",
    re.ASCII,
)
_LAUNCH = re.compile(r"(.+?)(-l[0-9]+)", re.ASCII | re.DOTALL)
_KINDS = ("result", "collection", "manifest", "input", "log", "workload")


class Reference(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What travels instead of data. `sha256` is the hash of the payload's bytes. `rows` is the
    number of rows, which are the value itself or, if it is a map, its member `rows_at`."""

    ref_id: RefId
    type: Home
    uri: str
    sha256: str | None = None
    bytes: int | None = None
    rows: int | None = None
    rows_at: str | None = None
    format: str | None = None


class Lifetime(Struct, frozen=True, omit_defaults=True):
    """How long a payload is kept: for `ttl` microseconds after its creation, or by its scope.

    `step`: until no execution can use it any more. `execution`: for the retention time after the
    end of its execution. `workflow`: the same, after the end of the outermost parent execution.
    `permanent`: for ever.
    """

    scope: Scope = "execution"
    ttl: int | None = None


class ParentRef(Struct, frozen=True, omit_defaults=True):
    """The result that a result was made from."""

    ref_id: RefId | None = None


class Address(Struct, frozen=True):
    """The parts of `noetl://execution/<id>/<kind>/<step>/<key>`."""

    execution_id: ExecutionId
    kind: str
    step: str
    key: str

    def __str__(self) -> str:
        return f"noetl://execution/{self.execution_id}/{self.kind}/{self.step}/{self.key}"


def check_execution_id(execution_id: str) -> ExecutionId:
    if not _NUMBER.fullmatch(execution_id) or int(execution_id) >= 1 << 63:
        raise BadReference(
            f"{execution_id!r} is not an execution id",
            hint="execution ids are decimal numbers below 2^63",
        )
    return ExecutionId(execution_id)


@lru_cache(maxsize=4096)  # an address is made, stored, checked and read
def make_address(execution_id: str, kind: str, step: str, key: str) -> Address:
    """Make an address. Raises BadReference if a part is not allowed."""
    check_execution_id(execution_id)
    if kind not in _KINDS:
        raise BadReference(
            f"{kind!r} is not a kind of reference", hint=f"one of {', '.join(_KINDS)}"
        )
    for part in (step, key):
        if not _SEGMENT.fullmatch(part) or ".." in part:
            raise BadReference(
                f"{part!r} cannot stand in a reference",
                hint="letters, digits, '_', '-' and single dots",
            )
    return Address(ExecutionId(execution_id), kind, step, key)


def parse_uri(uri: str) -> Address:
    scheme, _, rest = uri.partition("://")
    parts = rest.split("/")
    if scheme != "noetl" or len(parts) != 5 or parts[0] != "execution":
        raise BadReference(
            f"{uri[:200]!r} is not a NoETL reference",
            hint="noetl://execution/<id>/<kind>/<step>/<key>",
        )
    return make_address(*parts[1:])


def derive_ref_id(uri: str) -> RefId:
    """Derive 63 bits from the address."""
    return RefId(str(int(derive_id("ref", uri), 16) >> 65))


def make_result_key(
    command: str,
    attempt: int,
    task: str,
    index: int | None = None,
) -> str:
    """The key of a result. It contains the attempt, so a retry never overwrites a result; it leaves
    an orphan that is swept later."""
    key = f"{command}-{attempt}-{task}"
    if index is not None:
        key += f"-{index}"
    return key


def make_member_label(label: str, name: str) -> str:
    """The label of a member of a value, if the member is a payload of its own."""
    return f"{label}.{name}"


def is_member_uri(uri: str, name: str, of_member: Any) -> bool:
    """Whether `of_member` is the address of the member `name` of the value at `uri`.
    A further launch of the same attempt appends its number to the label: `-l2`."""
    if of_member == make_member_label(uri, name):
        return True
    match = _LAUNCH.fullmatch(uri)
    return match is not None and of_member == make_member_label(match[1], name) + match[2]


class PayloadOrigin(Struct, frozen=True):
    """What made a payload, according to its key: a task in its nth run, or a named part of the
    command."""

    command_id: CommandId
    attempt: int
    task: str
    run: int = 1
    page: int = 0


def parse_result_key(key: str) -> PayloadOrigin | None:
    """Parse the key of a result. None if it is another key."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    return PayloadOrigin(
        CommandId(match[1]),
        int(match[2]),
        match[3],
        int(match[4] or 1),
        int(match[5] or 0),
    )
