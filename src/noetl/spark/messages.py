"""The messages that pass between the worker, the client processes and Spark's tasks.

They pass as JSON, with NaN and with integers of any size, because values of users pass in them. A
`FrameManifest` is also recorded in files, which other releases read: a new field needs a default.
"""

import json
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from noetl.model.errors import Failure
from noetl.model.events import Items
from noetl.tools.egress.rules import EgressRules

T = TypeVar("T")


def encode_message(message: Any) -> bytes:
    return json.dumps(msgspec.to_builtins(message)).encode()


def decode_message(data: bytes | str, kind: type[T]) -> T:
    return msgspec.convert(json.loads(data), kind)


# ---- what a step computes ------------------------------------------------------------------------------------------------


class SparkStatement(Struct, frozen=True):
    """A statement of SQL, or an expression. `values` are those of its parameters, by name."""

    text: str
    values: dict[str, Any]


class InputSpec(Struct, frozen=True, omit_defaults=True):
    """How Spark reads an input: a table of Spark, or paths of a format."""

    table: str | None = None
    format: str | None = None
    paths: list[str] = []
    options: dict[str, Any] = {}
    schema: str | None = None  # an Arrow schema in hexadecimal digits
    columns: list[str] = []  # those to read; none: all
    partition: dict[str, Any] | None = None  # `column` and `count`
    decimals: list[str] = []  # columns that hold a number without precision as text


class OutputSpec(Struct, frozen=True, omit_defaults=True):
    """Where a step writes its frame: to a path, or (`kind`) to a database."""

    path: str = ""
    format: str = ""
    options: dict[str, Any] = {}
    mode: str | None = None
    partition_by: list[str] = []
    kind: str | None = None


class CheckSpec(Struct, frozen=True):
    """A check of `expect`. `on_fail` says what happens if rows do not meet it."""

    name: str
    sql: str
    values: dict[str, Any]
    on_fail: str


class LoopSource(Struct, frozen=True):
    """The files with the items of a loop. If `indexed`, a row has its `index` beside its `item`."""

    paths: list[str]
    indexed: bool


class LoopWork(Struct, frozen=True):
    """What the tasks of a loop get. `plan`, `command` and `known` are in base64.

    Each of the `shards` has `chunk` items, of which `together` run at once.
    """

    plan: str
    command: str
    known: str
    chunk: int
    shards: int
    together: int
    size: int
    provenance: bool
    source: LoopSource
    reports: str  # the folder for the reports of shards that have ended
    egress: EgressRules = EgressRules()  # where tools of the tasks may connect to
    ticket: str = ""
    folder: str = ""  # for the files of rows


# ---- what a step gives ---------------------------------------------------------------------------------------------------


class FileFacts(Struct, frozen=True, omit_defaults=True):
    """A file of a frame. Files at a path of the user are neither counted nor hashed."""

    path: str
    bytes: int
    rows: int = 0
    sha256: str = ""


class FrameManifest(Struct, frozen=True, omit_defaults=True):
    """The files of a frame. `expect` has the number of rows that failed each check."""

    columns: list[str]
    expect: dict[str, int]
    files: list[FileFacts]
    partitions: int = 1
    # Of a step that writes to a path. `skipped`: it found data there and wrote nothing.
    path: str | None = None
    rows: int | None = None
    skipped: bool = False
    # Of a loop, for each shard.
    shards: list[Items] = []
    provenance: list[dict[str, Any]] = []


class ShardReport(Struct, frozen=True):
    """What a task says of its shard: its file, how its items ended, and what they share."""

    file: FileFacts
    items: Items
    provenance: dict[str, Any]


# ---- worker and client process -------------------------------------------------------------------------------------------


class SparkWork(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a client process runs: one of `sql`, `code` and `loop`.

    `brings` says that it adds files or code to its session. `staged` are rows that an earlier lease
    has computed.
    """

    brings: bool
    conf: dict[str, str] = {}
    inputs: dict[str, InputSpec] = {}
    sql: list[SparkStatement] | None = None
    code: str | None = None
    given: dict[str, Any] = {}
    loop: LoopWork | None = None
    expect: list[CheckSpec] = []
    output: OutputSpec = OutputSpec()
    ticket: str = ""
    staged: FrameManifest | None = None


class ConnectServer(Struct, frozen=True):
    """A Spark Connect server: its address, and whether it is NoETL's own."""

    url: str
    ours: bool


class RunRequest(Struct, frozen=True, tag="run", kw_only=True):
    """Run this work in a new session, which is a copy of the session `base` if there is one."""

    server: ConnectServer
    work: SparkWork
    session: str
    base: str | None
    key: str
    folder: str  # for files of rows
    copy_record: str  # the file that records a copy to the user's path
    tags: list[str]
    max_value_bytes: int


class ReleaseRequest(Struct, frozen=True, tag="release"):
    """End these sessions."""

    server: ConnectServer
    sessions: list[str]


SparkRequest = RunRequest | ReleaseRequest


def decode_request(data: bytes) -> SparkRequest:
    request: SparkRequest = msgspec.convert(json.loads(data), SparkRequest)
    return request


class SparkAnswer(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a client process found: a value, frames by name beside it, or an error.

    If `single`, the only frame has no name. `metrics` are of Spark. `sample` has rows that failed a
    check.
    """

    value: Any = None
    frames: dict[str, FrameManifest] | None = None
    single: bool = False
    metrics: dict[str, Any] = {}
    error: Failure | None = None
    sample: list[dict[str, Any]] | None = None


class ClientLine(Struct, frozen=True, omit_defaults=True):
    """A line of a client process: its progress, or its answer at the end."""

    progress: str = ""
    answer: SparkAnswer | None = None


# ---- tasks and worker ----------------------------------------------------------------------------------------------------


class TicketQuestion(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A question of a task to its worker.

    `of` names an input or the address of a result, `file` the number of one of its files. `entry`
    names an entry of the keychain, `secret` a secret of a provider.
    """

    of: str | None = None
    file: int | None = None
    entry: str | None = None
    secret: str | None = None
    provider: str | None = None


class TicketReply(Struct, frozen=True, omit_defaults=True):
    answer: Any = None
    refused: Failure | None = None


class InputFacts(Struct, frozen=True):
    """The answer about an input: its Arrow schema in hexadecimal digits, and its number of files."""

    schema: str
    count: int


class FileLocation(Struct, frozen=True, omit_defaults=True):
    """The answer about a file: its path, or a signed URL and the size."""

    path: str | None = None
    url: str = ""
    size: int = 0
