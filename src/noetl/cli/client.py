"""Whom the commands talk to: a server over HTTP when one is given, else the home of this machine. Both answer alike."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from noetl.model.errors import NotFound
from noetl.model.ids import ExecutionId

if TYPE_CHECKING:  # loaded by the command that runs: `--help` must not wait for it
    from noetl.log.port import Recorded
    from noetl.model.reference import Reference
    from noetl.server.services.logs import LogService

Need = Literal["read", "change", "run"]  # what a command is about to do
Change = Literal["cancel", "pause", "resume", "release"]
Again = Literal["retry", "rerun"]
Turned = Literal["pause", "resume"]  # what can be done to a schedule
Pinning = Literal["pin", "unpin"]
Row = dict[str, Any]  # as the API has it
Span = tuple[int, int | None]  # rows [first, last)
LATEST = "@latest"
MOST_NODES = 1_000


class Client(Protocol):
    """`runs`: whoever it is keeps executions going when this command has ended."""

    runs: bool

    async def register(self, text: str, path: str | None = None) -> Row: ...
    async def playbooks(self, prefix: str = "") -> list[Row]: ...
    async def playbook(self, path: str, version: int | None = None) -> Row: ...
    async def diff(self, path: str, older: int, newer: int | None = None) -> Row: ...

    async def add_credential(self, name: str, kind: str, data: dict[str, Any]) -> Row: ...
    async def credentials(self) -> list[Row]: ...
    async def delete_credential(self, name: str) -> Row: ...

    async def add_schedule(self, **wanted: Any) -> Row: ...
    async def schedules(self) -> list[Row]: ...
    async def schedule(self, name: str) -> Row: ...
    async def change_schedule(self, name: str, how: Turned) -> Row: ...
    async def delete_schedule(self, name: str) -> Row: ...
    async def slots(self, name: str, count: int) -> Row: ...

    async def add_hook(self, **call: Any) -> Row: ...
    async def hooks(self) -> list[Row]: ...
    async def delete_hook(self, name: str) -> Row: ...

    async def state_values(self, path: str | None) -> list[Row]: ...  # of one playbook, or of all
    async def state_value(self, path: str, name: str) -> Row: ...
    async def set_state(self, path: str, name: str, value: Any, expected: int | None) -> Row: ...
    async def unset_state(self, path: str, name: str, expected: int | None) -> Row: ...
    async def state_history(self, path: str, name: str) -> list[Row]: ...  # newest first

    async def start(
        self, path: str, version: int | None, payload: dict[str, Any]
    ) -> ExecutionId: ...
    async def again(self, execution_id: ExecutionId, how: Again, **wish: Any) -> ExecutionId:
        """`wish`: version, from_step (of a rerun) and payload, as the API has them."""
        ...

    async def preview_again(self, execution_id: ExecutionId, how: Again, **wish: Any) -> Row: ...
    async def change(self, execution_id: ExecutionId, how: Change) -> Row: ...
    async def signal(self, execution_id: ExecutionId, name: str, payload: Any) -> Row: ...

    async def executions(
        self, *, before: str | None = None, limit: int = 50, **filters: Any
    ) -> list[Row]:
        """Newest first. Filters: status, path, parent, since, roots, as the API has them."""
        ...

    async def execution(self, execution_id: ExecutionId, min_seq: int | None = None) -> Row: ...
    async def workload(self, execution_id: ExecutionId) -> Row: ...
    async def cause(self, execution_id: ExecutionId, min_seq: int) -> Row | None:
        """The first causal failure of one that failed; `min_seq` is the number of its last event."""
        ...

    async def explain(self, execution_id: ExecutionId, step: str) -> Row: ...
    async def events(self, execution_id: ExecutionId, after: int = 0) -> "list[Recorded]": ...
    async def events_after(self, execution_id: ExecutionId, after: int) -> "list[Recorded]":
        """What was recorded since; waits a moment when there is nothing."""
        ...

    def logs(
        self, execution_id: ExecutionId, step: str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[list[Row], None]:
        """What its steps printed, in the order it came; to its end when it is followed."""
        ...

    async def resolve(self, reference: "Reference") -> Any: ...
    async def preview(self, execution_id: ExecutionId, step: str, rows: int) -> Row: ...
    def download(
        self, execution_id: ExecutionId, step: str, format: str | None, rows: Span = (0, None)
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of a result; without a format as it is stored."""
        ...

    async def trace(self, execution_id: ExecutionId, step: str, depth: int) -> Row:
        """With so many nodes as MOST_NODES; `next` is set when there are more."""
        ...

    async def pin(self, execution_id: ExecutionId, step: str, how: Pinning) -> Row: ...
    async def usage_of(self, execution_id: ExecutionId) -> Row: ...
    async def usage(self, path: str | None, before: str | None, limit: int) -> Row: ...

    async def queue(
        self, status: str | None = None, execution_id: ExecutionId | None = None
    ) -> list[Row]: ...
    async def workers(self) -> list[Row]: ...
    async def history(self) -> str:
        """ "ok", or why compacted history cannot be read by whoever this talks to."""
        ...

    async def lag(self) -> dict[int, float]:
        """Milliseconds that the projection of a shard is behind, where it is."""
        ...


@asynccontextmanager
async def connect(need: Need = "read", pools: tuple[str, ...] = ()) -> AsyncIterator[Client]:
    """`pools` that a worker of this process takes too."""
    from noetl.settings import HomeSettings, read

    place = read(HomeSettings)
    if place.servers:
        from noetl.cli.remote import Remote

        async with Remote(place.servers[0], place.where) as remote:
            yield remote
        return
    from noetl.cli.embedded import local

    async with local(place.where, need, pools) as client:
        yield client


async def printed(
    service: "LogService", execution_id: ExecutionId, step: str | None, *, follow: bool
) -> AsyncGenerator[list[Row], None]:
    """`Client.logs` for those who have the log itself."""
    from noetl.model.identity import LOCAL
    from noetl.server.services.logs import lines

    if follow:
        async with aclosing(service.follow(LOCAL, execution_id, step)) as pages:
            async for page in pages:
                if isinstance(page, list):
                    yield [line for part in page for line in lines(part)]
        return
    after = 0
    while found := await service.page(LOCAL, execution_id, step, after):
        after = found[-1].number
        yield [line for part in found for line in lines(part)]


async def pages_of(page: Callable[[str | None], Awaitable[Row]]) -> Row:
    """`Client.trace`: all pages as one."""
    whole = await page(None)
    while whole["next"] is not None and len(whole["nodes"]) < MOST_NODES:
        more = await page(whole["next"])
        whole["nodes"] += more["nodes"]
        whole["edges"] += more["edges"]
        whole["next"] = more["next"]
    return whole


async def named(client: Client, text: str) -> ExecutionId:
    """The execution that the user means: its id, or `@latest`, the last one that was not started by another."""
    if text != LATEST:
        if not (text.isascii() and text.isdigit()):
            raise NotFound(
                f"{text!r} is not an execution id",
                hint="a number, or @latest; noetl exec list shows them",
            )
        return ExecutionId(text)
    for row in await client.executions(roots=True, limit=1):
        return ExecutionId(row["execution_id"])
    raise NotFound("there is no execution yet", hint="noetl run FILE starts one")
