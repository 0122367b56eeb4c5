"""What commands need from outside the pipeline, wired once per worker."""

from collections.abc import Awaitable, Callable

from msgspec import Struct, field, structs

from noetl.model.clock import Clock, format_iso
from noetl.model.decisions import AddPart
from noetl.model.envelope import MAX_CONTEXT_BYTES
from noetl.model.events import Reported
from noetl.model.messages import StoredRef
from noetl.pipeline.secrets.keychain import Keychain
from noetl.pipeline.secrets.redaction import Redactor
from noetl.results.port import ResultStore
from noetl.template.replay_functions import DerivedFunctions
from noetl.tools.credentials.managers import SecretManagers
from noetl.tools.credentials.oauth import TokenCache
from noetl.tools.credentials.port import Credentials, EnvCredentials
from noetl.tools.port import Log, Progress, discard_log, discard_progress
from noetl.tools.registry import Registry


class OutgoingEvent(Struct, frozen=True):
    """An event to be sent to the owner of the shard, with the references it brings."""

    event: Reported
    refs: tuple[StoredRef, ...] = ()


# Sends an entry of the journal, and returns when it is acknowledged.
SendJournalEntry = Callable[[OutgoingEvent], Awaitable[None]]
ReadManifest = Callable[[str], Awaitable[list[AddPart]]]
OpenTaskLog = Callable[[str, int | None], Log]  # the log of a task, and of an item of a loop


async def read_no_manifest(manifest: str) -> list[AddPart]:
    return []


def open_no_log(task: str, item: int | None) -> Log:
    return discard_log


class Environment(Struct, frozen=True):
    """The store, the tools, the clock and the other services of one worker."""

    store: ResultStore
    registry: Registry
    clock: Clock
    worker: str
    manifests: ReadManifest = read_no_manifest
    logs: OpenTaskLog = open_no_log
    progress: Progress = discard_progress
    credentials: Credentials = field(default_factory=EnvCredentials)
    redactor: Redactor = field(default_factory=Redactor)
    tokens: TokenCache = field(default_factory=TokenCache)
    managers: SecretManagers = field(default_factory=SecretManagers)
    keychain: Callable[..., Keychain] = Keychain  # makes the keychain of a command
    context_limit: int = MAX_CONTEXT_BYTES

    def redact_event(self, sent: OutgoingEvent) -> OutgoingEvent:
        """The event without secrets.

        Every event passes here last, so a secret that any code put into it is still removed.
        """
        if not self.redactor:
            return sent
        return structs.replace(sent, event=self.redactor.redact_event_fields(sent.event))


class SeededFunctions(Struct, frozen=True):
    """`now()`, `uuid()` and `random()` of templates.

    The last two depend on the seed only, so the same try gives the same values again.
    """

    seed: str
    clock: Clock

    def now(self) -> str:
        return format_iso(self.clock.now())

    def uuid(self, nth: int) -> str:
        return DerivedFunctions(self.seed, "").uuid(nth)

    def random(self, nth: int) -> float:
        return DerivedFunctions(self.seed, "").random(nth)
