"""`keychain.*` and `auth` in Spark's tasks.

A task is sent no secret. It has a ticket, and asks the worker of its command when a template or a
tool first needs a secret. The secret stays in the memory of the task; it is redacted from rows and
printed output.
"""

import asyncio
import io
from typing import Any, TextIO

from noetl.model.errors import Failure
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.secrets.keychain import Keychain
from noetl.pipeline.secrets.redaction import Redactor
from noetl.playbook.model import KeychainEntry
from noetl.spark.messages import TicketQuestion
from noetl.spark.step.tickets import TicketAnswerer, TicketRefused, ask_ticket
from noetl.tools.port import Call

MAX_HELD_CHARS = 64 * 1024  # characters of a line that has not ended
SECRET_CACHE_S = 10.0  # seconds that a secret is cached, because every item asks for it


class TicketKeychain(Keychain):
    """A keychain that asks the worker for entries and credentials. It makes only static entries
    itself, because their values are in the playbook."""

    def __init__(self, ticket: str, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._ticket = ticket
        self._cached_answers: dict[TicketQuestion, tuple[float, Any]] = {}
        self._ask_lock = asyncio.Lock()

    async def _resolve_by_kind(self, entry: KeychainEntry) -> dict[str, Any]:
        if entry.kind == "static":
            return await super()._resolve_by_kind(entry)
        found: dict[str, Any] = await self._ask_cached(entry.name, TicketQuestion(entry=entry.name))
        return found

    async def _read_credential(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._ask_cached(name, TicketQuestion(secret=name))
        return found

    async def resolve_secret(self, name: str, provider: str | None) -> Any:
        return await self._ask_cached(name, TicketQuestion(secret=name, provider=provider))

    async def _ask_cached(self, name: str, question: TicketQuestion) -> Any:
        now = asyncio.get_running_loop().time
        async with self._ask_lock:  # one of several concurrent items asks
            expires_at, answer = self._cached_answers.get(question, (0.0, None))
            if now() >= expires_at:
                answer = await asyncio.to_thread(_ask_worker, self._ticket, question)
                self._cached_answers[question] = now() + SECRET_CACHE_S, answer
        self.held.register_credential(name, answer)
        return answer


def _ask_worker(ticket: str, question: TicketQuestion) -> Any:
    try:
        return ask_ticket(ticket, question)
    except TicketRefused as refused:
        raise TaskFailed(refused.failure) from refused
    except OSError as error:
        message = f"the worker of this loop does not answer: {error}"
        raise TaskFailed(
            Failure(code="CREDENTIAL_UNAVAILABLE", kind="auth", message=message, retryable=True)
        ) from error


class RedactedStdout(io.TextIOBase):
    """The output stream of a task: text goes to the log of Spark without the task's secrets."""

    def __init__(self, to: TextIO, redactor: Redactor) -> None:
        self._to = to
        self._redactor = redactor
        self._line = ""  # the last line, which has not ended

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        ended, line_end, rest = (self._line + text).rpartition("\n")
        self._line = rest
        if line_end:
            self._to.write(self._redactor.redact_text(ended + line_end))
        if len(rest) > MAX_HELD_CHARS:
            self.end_line()
        return len(text)

    def flush(self) -> None:
        """Lines that have not ended wait: a secret may be written in two parts."""
        self._to.flush()

    def end_line(self) -> None:
        """Write the rest, which has no end of line."""
        rest, self._line = self._line, ""
        if rest:
            self._to.write(self._redactor.redact_text(self._redactor.drop_cut_secret(rest)))


def make_secret_answerer(call: Call) -> TicketAnswerer:
    """The worker's side: the function that answers the questions of a loop's tasks."""

    async def answer_question(question: TicketQuestion) -> Any:
        try:
            if question.entry is not None and call.credential is not None:
                return await call.credential(question.entry)
            if question.secret is not None and call.secret is not None:
                return await call.secret(question.secret, question.provider)
        except TaskFailed as failing:
            raise TicketRefused(failing.failure) from failing
        raise TicketRefused(
            Failure(code="CREDENTIAL_MISSING", kind="auth", message="there is no such secret here")
        )

    return answer_question
