"""The internal model of a playbook. `dialect` rewrites every accepted spelling to this form.

A field of type `Template` holds text that may contain `{{ … }}`, or a JSON value with such text
inside. Nothing here renders it. Unknown keys are errors everywhere. `validation` adds positions,
hints and the checks across steps.
"""

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from noetl.playbook import durations
from noetl.playbook.sizes import parse_bytes

API_VERSION: Literal["noetl.io/v2"] = "noetl.io/v2"
DEFAULT_ATTEMPTS = 3  # total tries of a `retry` without `attempts`
NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_\-]*$"

Template = Any  # a JSON value in which every text may be a template; rendering decides its type
Guard = str | bool | int | None
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=128)]


def _check_duration(value: str | int | float) -> str | int | float:
    if not (isinstance(value, str) and "{{" in value):
        durations.parse_micros(value)
    return value


def _check_optional_duration(value: str | int | float | None) -> str | int | float | None:
    return None if value is None else _check_duration(value)


def _check_literal_duration(value: str | int | float | None) -> str | int | float | None:
    if value is not None:
        durations.parse_micros(value)
    return value


def _check_size(value: str | int | None) -> str | int | None:
    if value is not None:
        parse_bytes(value)
    return value


def _wrap_in_list(value: Any) -> Any:
    """Accept `key: day` for `key: [day]`."""
    return [value] if isinstance(value, str) else value


def _expand_else(data: Any) -> Any:
    """Turn `else: action` or `else: {then: action}` into a rule that always matches."""
    if not isinstance(data, dict) or "else" not in data or "when" in data:
        return data
    action = data["else"]
    if isinstance(action, dict):
        action = action.get("then", action)
    return {"when": True, "then": action}


class Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        str_strip_whitespace=False,
        defer_build=True,
    )


# ---- tasks -------------------------------------------------------------------------------------------------------------


class Action(Model):
    """What a policy rule does if it matches."""

    do: Literal["continue", "retry", "jump", "break", "fail"] = "continue"
    attempts: int | str | None = Field(
        default=None, description="retry: total tries, the first one included"
    )
    delay: str | int | float | None = Field(
        default=None, description="retry: time before the next try"
    )
    backoff: Literal["none", "fixed", "linear", "exponential"] | None = None
    multiplier: float | None = Field(
        default=None, gt=0, description="exponential: growth of the delay per try, 2 by default"
    )
    max_delay: str | int | float | None = None
    jitter: bool | float | None = Field(
        default=None, description="retry: share of the delay that is random (true: half of it)"
    )
    exhausted: Literal["fail", "continue", "break", "jump"] | None = Field(
        default=None,
        description="retry: what follows the last try, `fail` with its error by default",
    )
    to: str | None = Field(
        default=None, description="jump, exhausted: jump: a task name or `previous`"
    )
    max_jumps: int | None = Field(
        default=None, ge=1, description="jump, exhausted: jump: cap, 10 000 by default"
    )
    message: str | None = Field(default=None, description="fail: what the error says")
    set: dict[str, Template] = {}

    _delays = field_validator("delay", "max_delay")(_check_duration)

    @property
    def can_jump(self) -> bool:
        return self.do == "jump" or self.exhausted == "jump"


class Rule(Model):
    """The first rule that matches wins. `else` is a last rule that always matches."""

    when: Guard = True
    then: Action = Action()

    @model_validator(mode="before")
    @classmethod
    def _accept_else(cls, data: Any) -> Any:
        return _expand_else(data)


class TaskPolicy(Model):
    rules: list[Rule] = []


class Target(Model):
    """Where a sink writes."""

    kind: str
    auth: Template = None
    table: str | None = None
    path: str | None = None
    url: str | None = None
    database: str | None = None
    format: str | None = None
    method: str | None = None
    headers: dict[str, Template] = {}
    mode: Literal["insert", "upsert", "append", "replace", "staged"] = "insert"
    key: list[str] = []
    at_least_once: bool = False

    _one_column = field_validator("key", mode="before")(_wrap_in_list)


class Sink(Model):
    target: Target
    data: Template = None


class Collect(Model):
    strategy: Literal["append", "extend", "replace", "merge"] = "append"
    path: str | None = Field(
        default=None, description="which part of each answer is collected, e.g. data.items"
    )
    into: str | None = Field(default=None, description="ctx name that receives what was collected")


class Paginate(Model):
    """The built-in paginator: call again while `when` holds, journaling every page."""

    when: Guard
    next_call: dict[str, Template] = Field(
        default={}, description="merged over the last call; empty means polling"
    )
    collect: Collect | None = None
    max_attempts: int | str | None = Field(
        default=None,
        description="calls in all: pages end there, a poll that would go on fails; without it, more than 1000 calls fail",
    )
    delay: str | int | float | None = None
    backoff: Literal["none", "fixed", "linear", "exponential"] | None = None
    max_delay: str | int | float | None = None
    sink: Sink | None = Field(default=None, description="stores every page as it arrives")

    _delays = field_validator("delay", "max_delay")(_check_duration)


class TaskSpec(Model):
    when: Guard = Field(default=None, description="the task is passed over unless this holds")
    policy: TaskPolicy = TaskPolicy()
    paginate: Paginate | None = None
    profile: str | None = Field(default=None, description="spark: which profile runs it")


class Output(Model):
    """Hints for the result store."""

    store: Literal["auto", "kv", "disk", "object", "object_store"] | None = None
    format: str | None = None
    scope: Literal["step", "execution", "workflow", "permanent"] | None = None
    ttl: str | int | float | None = None
    partition_by: list[str] = []
    kind: str | None = None
    auth: Template = None
    table: str | None = None
    path: str | None = None
    mode: str | None = None
    key: list[str] = []
    options: dict[str, str | int | float | bool] = Field(
        default={}, description="spark: of the writer of the format"
    )

    _ttl = field_validator("ttl")(_check_literal_duration)
    _one_column = field_validator("key", "partition_by", mode="before")(_wrap_in_list)


class Task(Model):
    """The fields that every tool kind accepts."""

    name: Name
    kind: str
    input: dict[str, Template] = {}
    auth: Template = None
    timeout: str | int | float | None = None
    spec: TaskSpec = TaskSpec()
    output: Output = Output()
    set: dict[str, Template] = {}
    provenance: dict[str, Template] = {}

    _timeout = field_validator("timeout")(_check_literal_duration)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The fields of this kind alone, as plain data.

        Cached, because a task may run many times.
        """
        return self._dump_own_fields()

    def _dump_own_fields(self) -> dict[str, Any]:
        own_fields = type(self).model_fields.keys() - Task.model_fields.keys()
        return self.model_dump(include=own_fields)


class TaskLimits(Model):
    """Limits of the processes of a task. A worker allows them up to its `NOETL_STEP_MAX_*`."""

    memory: str | int | None = Field(
        default=None, description="private memory of each process, e.g. 2GB"
    )
    cpu: str | int | float | None = Field(
        default=None, description="processor time of a call or command, e.g. 10m"
    )
    processes: int | None = Field(default=None, ge=1, description="processes and threads")
    file_size: str | int | None = Field(default=None, description="size of each file, e.g. 1GB")
    open_files: int | None = Field(default=None, ge=16, description="open files of each process")

    _durations = field_validator("cpu")(_check_literal_duration)
    _sizes = field_validator("memory", "file_size")(_check_size)


class Script(Model):
    uri: str


class PythonTask(Task):
    kind: Literal["python"] = "python"
    code: str | None = None
    script: Script | None = None
    env: dict[str, Template] = {}
    limits: TaskLimits | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "PythonTask":
        if (self.code is None) == (self.script is None):
            raise ValueError("python takes exactly one of `code` and `script`")
        return self


class HttpTask(Task):
    kind: Literal["http"] = "http"
    url: str
    method: str = "GET"
    params: dict[str, Template] | str = {}
    headers: dict[str, Template] | str = {}
    body: Template = None
    form: Template = None
    follow_redirects: bool = True
    trusted_origins: list[str] = Field(
        default=[],
        description="origins that get credential, headers and body too, when a redirect or a next page leads there",
    )
    verify: bool | str = True


class SqlTask(Task):
    query: str | list[str] | None = None
    script: Script | None = None
    params: dict[str, Template] = {}
    inputs: dict[str, Template] = {}
    database: str | None = None
    autocommit: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> "SqlTask":
        if (self.query is None) == (self.script is None):
            raise ValueError(f"{self.kind} takes exactly one of `query` and `script`")
        return self


class PostgresTask(SqlTask):
    kind: Literal["postgres"] = "postgres"


class DuckdbTask(SqlTask):
    kind: Literal["duckdb"] = "duckdb"


class ShellTask(Task):
    kind: Literal["shell"] = "shell"
    cmds: list[str | list[str]] = Field(min_length=1)
    env: dict[str, Template] = {}
    cwd: str | None = None
    limits: TaskLimits | None = None

    @field_validator("cmds", mode="before")
    @classmethod
    def _one_command(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class PlaybookTask(Task):
    kind: Literal["playbook"] = "playbook"
    path: str
    version: str | int | None = None
    return_step: str | None = None
    wait: bool = True


class WorkbookCall(Task):
    kind: Literal["workbook"] = "workbook"
    task: str = Field(description="name of the workbook task; spelled `name` in a single tool")


class WaitTask(Task):
    kind: Literal["wait"] = "wait"
    duration: str | int | float | None = None
    until: str | None = None
    signal: str | None = None
    approval: Template = None

    _duration = field_validator("duration")(_check_optional_duration)

    @model_validator(mode="after")
    def _one_reason(self) -> "WaitTask":
        reasons = ("duration", "until", "signal", "approval")
        given = [name for name in reasons if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"wait takes exactly one of duration, until, signal, approval; found {given or 'none'}"
            )
        return self


class SecretsTask(Task):
    kind: Literal["secrets"] = "secrets"
    secret: str = Field(description="name of the secret; spelled `name` in a single tool")
    provider: str | None = None


class ArtifactTask(Task):
    kind: Literal["artifact"] = "artifact"
    ref: Template = None
    put: Template = None

    @model_validator(mode="after")
    def _one_direction(self) -> "ArtifactTask":
        if (self.ref is None) == (self.put is None):
            raise ValueError("artifact takes exactly one of `ref` (get) and `put`")
        return self


class TransferTask(Task):
    kind: Literal["transfer"] = "transfer"
    source: dict[str, Template]
    target: Target


class NatsTask(Task):
    kind: Literal["nats"] = "nats"
    operation: Literal["publish", "request", "kv_get", "kv_put", "kv_delete"]
    subject: str | None = None
    bucket: str | None = None
    key: str | None = None
    value: Template = None

    @model_validator(mode="after")
    def _fields_of_operation(self) -> "NatsTask":
        needed = ["bucket", "key"]
        if self.operation in ("publish", "request"):
            needed = ["subject"]
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(f"nats {self.operation} needs `{name}`")
        return self


class SparkTask(Task):
    kind: Literal["spark"] = "spark"
    inputs: dict[str, Template] = {}
    sql: str | None = None
    code: str | None = None
    pipeline: Template = None
    app: Template = None
    conf: dict[str, Template] = {}
    expect: list[dict[str, Template]] = []

    @model_validator(mode="after")
    def _one_body(self) -> "SparkTask":
        bodies = ("sql", "code", "pipeline", "app")
        given = [name for name in bodies if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"spark takes exactly one of sql, code, pipeline, app; found {given or 'none'}"
            )
        return self

    @cached_property
    def config(self) -> dict[str, Any]:
        """Also has `output` and `profile`, because Spark itself writes the rows."""
        return {
            **self._dump_own_fields(),
            "output": self.output.model_dump(exclude_unset=True),
            "profile": self.spec.profile,
        }


class SinkTask(Task):
    """A storage task. It changes neither `_prev` nor the step's value."""

    kind: Literal["sink"] = "sink"
    target: Target
    data: Template = None


class NoopTask(Task):
    kind: Literal["noop"] = "noop"


class OutsideTask(Task):
    """A kind that an installed package provides. The package's own model checks `options`."""

    options: dict[str, Template] = {}


BUILT_IN_TASKS: dict[str, type[Task]] = {
    model.model_fields["kind"].default: model
    for model in (
        PythonTask,
        HttpTask,
        PostgresTask,
        DuckdbTask,
        ShellTask,
        PlaybookTask,
        WorkbookCall,
        WaitTask,
        SecretsTask,
        ArtifactTask,
        TransferTask,
        NatsTask,
        SparkTask,
        SinkTask,
        NoopTask,
    )
}
# Kinds that `exec: spark` loops can run.
SPARK_LOOP_KINDS = frozenset({"python", "http", "noop", "sink"})


def _find_task_tag(value: Any) -> str:
    if isinstance(value, dict):
        kind = value.get("kind")
    else:
        kind = getattr(value, "kind", None)
    if isinstance(kind, str) and kind in BUILT_IN_TASKS:
        return kind
    return "outside"


AnyTask = Annotated[
    Annotated[PythonTask, Tag("python")]
    | Annotated[HttpTask, Tag("http")]
    | Annotated[PostgresTask, Tag("postgres")]
    | Annotated[DuckdbTask, Tag("duckdb")]
    | Annotated[ShellTask, Tag("shell")]
    | Annotated[PlaybookTask, Tag("playbook")]
    | Annotated[WorkbookCall, Tag("workbook")]
    | Annotated[WaitTask, Tag("wait")]
    | Annotated[SecretsTask, Tag("secrets")]
    | Annotated[ArtifactTask, Tag("artifact")]
    | Annotated[TransferTask, Tag("transfer")]
    | Annotated[NatsTask, Tag("nats")]
    | Annotated[SparkTask, Tag("spark")]
    | Annotated[SinkTask, Tag("sink")]
    | Annotated[NoopTask, Tag("noop")]
    | Annotated[OutsideTask, Tag("outside")],
    Discriminator(_find_task_tag),
]

# ---- steps -------------------------------------------------------------------------------------------------------------


class AdmitAction(Model):
    allow: bool = True
    next: str | None = Field(
        default=None, description="where the branch goes on when the step is skipped"
    )


class AdmitRule(Model):
    when: Guard = True
    then: AdmitAction = AdmitAction()

    @model_validator(mode="before")
    @classmethod
    def _accept_else(cls, data: Any) -> Any:
        return _expand_else(data)


class Admit(Model):
    """The first rule that matches wins. If none matches, the step is allowed."""

    rules: list[AdmitRule] = []


class StepPolicy(Model):
    admit: Admit | None = None
    failure: Literal["fail_fast", "continue"] = "fail_fast"


class StepSpec(Model):
    policy: StepPolicy = StepPolicy()
    timeout: str | int | float | None = None
    pool: str | None = None
    priority: int | None = None
    join: Literal["all", "each"] = "all"

    _timeout = field_validator("timeout")(_check_literal_duration)


class MaxFailed(Model):
    max_failed: int | str = Field(description="a count, or a share such as 5%")

    @field_validator("max_failed")
    @classmethod
    def _count_or_share(cls, value: int | str) -> int | str:
        text = str(value).strip()
        if text.endswith("%"):
            share = text[:-1]
            if share.replace(".", "", 1).isdigit() and float(share) <= 100:
                return text
        elif text.isdigit():
            return int(text)
        raise ValueError(f"max_failed is a count or a share such as 5%, not {value!r}")


Reducer = Literal["sum", "min", "max", "append", "merge", "last"]


class LoopPolicy(Model):
    exec: Literal["local", "distributed", "spark"] = "local"
    failure: Literal["fail_fast", "at_end", "best_effort"] | MaxFailed = Field(
        default="fail_fast",
        description="fail_fast: stop at the first failure; at_end: run every item, then fail; best_effort: never fail",
    )


class Frame(Model):
    size: int = Field(default=50, ge=1, le=10_000)
    lease: str | int | float | None = None
    heartbeat: str | int | float | None = None


class LoopSpec(Model):
    mode: Literal["sequential", "parallel", "cursor"] = "sequential"
    max_in_flight: int | None = Field(default=None, ge=1, le=100_000)
    chunk: Literal["auto"] | Annotated[int, Field(ge=1, le=10_000)] = "auto"
    frame: Frame | None = None
    policy: LoopPolicy = LoopPolicy()
    reduce: dict[str, Reducer] = {}

    @field_validator("frame", mode="before")
    @classmethod
    def _size_only(cls, value: Any) -> Any:
        return {"size": value} if isinstance(value, int) else value


class Cursor(Model):
    kind: str
    auth: Template = None
    claim: str
    params: dict[str, Template] = {}
    database: str | None = None


class Loop(Model):
    in_: Template = Field(default=None, alias="in")
    iterator: Name = "item"
    cursor: Cursor | None = None
    spec: LoopSpec = LoopSpec()


class Arc(Model):
    step: str
    when: Guard = None
    set: dict[str, Template] = {}
    args: dict[str, Template] = {}


class RouterSpec(Model):
    mode: Literal["exclusive", "inclusive"] = "exclusive"


class Router(Model):
    spec: RouterSpec = RouterSpec()
    arcs: list[Arc] = []


class Step(Model):
    step: Name
    desc: str | None = None
    spec: StepSpec = StepSpec()
    loop: Loop | None = None
    input: dict[str, Template] = {}
    tool: list[AnyTask] = Field(
        default=[], description="one task or a pipeline of named tasks; empty is a noop"
    )
    set: dict[str, Template] = {}
    next: Router | None = None


# ---- document ----------------------------------------------------------------------------------------------------------


class Metadata(Model):
    name: str
    path: str | None = None
    version: str | int | None = None
    description: str | None = None
    labels: dict[str, str] = {}


class ExecutorSpec(Model):
    entry_step: str | None = None
    final_step: str | None = None
    no_next_is_error: bool = False
    timeout: str | int | float | None = None
    max_concurrent: int | None = Field(default=None, ge=1)
    max_activations: int = Field(
        default=100_000,
        ge=1,
        le=1_000_000,
        description="steps that one execution may run before it fails with RUNAWAY",
    )
    priority: int = 0

    _timeout = field_validator("timeout")(_check_literal_duration)


class Executor(Model):
    spec: ExecutorSpec = ExecutorSpec()


class KeychainEntry(Model):
    name: Name
    kind: Literal["static", "credential", "env", "oauth2", "bearer", "basic", "secret_manager"]
    auth: Template = None
    credential: str | None = None
    provider: str | None = None
    env: str | None = None
    url: str | None = None
    scope: str | None = None
    ttl: str | int | float | None = None
    map: dict[str, Template] = {}


class WorkbookTask(Model):
    name: Name
    desc: str | None = None
    tool: AnyTask


class Playbook(Model):
    apiVersion: Literal["noetl.io/v2"] = API_VERSION
    kind: Literal["Playbook"] = "Playbook"
    metadata: Metadata
    executor: Executor = Executor()
    workload: dict[str, Template] = {}
    keychain: list[KeychainEntry] = []
    workbook: list[WorkbookTask] = []
    workflow: list[Step] = Field(min_length=1)

    @property
    def entry_step(self) -> str:
        named = self.executor.spec.entry_step
        if named is not None:
            return named
        names = [step.step for step in self.workflow]
        return "start" if "start" in names else names[0]
