"""What commands need from outside the pipeline, wired once per worker."""

from collections.abc import Awaitable, Callable

from msgspec import Struct, field, structs

from noetl.model.clock import Clock, iso
from noetl.model.decisions import AddPart
from noetl.model.envelope import CONTEXT_LIMIT
from noetl.model.events import Reported
from noetl.model.messages import StoredRef
from noetl.pipeline.keychain import Keychain
from noetl.pipeline.redaction import Redactor
from noetl.playbook.functions import Seeded
from noetl.results.port import ResultStore
from noetl.tools.credentials import Credentials, EnvCredentials
from noetl.tools.managers import Managers
from noetl.tools.oauth import Tokens
from noetl.tools.port import Log, Progress, silent, unseen
from noetl.tools.registry import Registry


class OutgoingEvent(Struct, frozen=True):
    """An event to be sent to the owner of the shard, with the references it brings."""

    event: Reported
    refs: tuple[StoredRef, ...] = ()


Journaling = Callable[[OutgoingEvent], Awaitable[None]]  # returns when the entry is acknowledged
Manifests = Callable[[str], Awaitable[list[AddPart]]]
LogTo = Callable[[str, int | None], Log]  # the log of a task, and of an item of a loop


async def no_manifest(manifest: str) -> list[AddPart]:
    return []


def no_logs(task: str, item: int | None) -> Log:
    return silent


class Environment(Struct, frozen=True):
    """The store, the tools, the clock and the other services of one worker."""

    store: ResultStore
    registry: Registry
    clock: Clock
    worker: str
    manifests: Manifests = no_manifest
    logs: LogTo = no_logs
    progress: Progress = unseen
    credentials: Credentials = field(default_factory=EnvCredentials)
    redactor: Redactor = field(default_factory=Redactor)
    tokens: Tokens = field(default_factory=Tokens)
    managers: Managers = field(default_factory=Managers)
    keychain: Callable[..., Keychain] = Keychain  # makes the keychain of a command
    context_limit: int = CONTEXT_LIMIT

    def clean(self, sent: OutgoingEvent) -> OutgoingEvent:
        """The event without secrets.

        Every event passes here last, so a secret that any code put into it is still removed.
        """
        if not self.redactor:
            return sent
        return structs.replace(sent, event=self.redactor.struct(sent.event))


class SeededFunctions(Struct, frozen=True):
    """`now()`, `uuid()` and `random()` of templates.

    The last two depend on the seed only, so the same try gives the same values again.
    """

    seed: str
    clock: Clock

    def now(self) -> str:
        return iso(self.clock.now())

    def uuid(self, nth: int) -> str:
        return Seeded(self.seed, "").uuid(nth)

    def random(self, nth: int) -> float:
        return Seeded(self.seed, "").random(nth)
