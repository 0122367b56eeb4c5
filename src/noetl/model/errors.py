"""Errors are of two kinds, never mixed:

`Failure` is a result: a tool, an expression or a child failed. It travels in an envelope, and
playbooks route on it. `NoetlError` is an exception: a bug, broken infrastructure, or a request
that cannot be honoured.

NoetlError
├── InvalidInput            the caller's mistake: nothing happened
│   ├── PlaybookInvalid       findings with file, line, column (playbook.validation)
│   ├── BadReference          a URI that is not ours, or not allowed
│   ├── KeyUnusable           the key file of credentials is readable by others, or broken
│   │                         (server.services.keys)
│   ├── NotFound              no such playbook, execution, step, reference
│   │   └── Expired             a result that existed and was deleted at the end of its lifetime
│   └── Conflict              the thing is in a state that forbids it (cancel after the end)
│       └── Unreadable          a stored credential that does not open (server.services.sealing)
├── TemplateError           a template that cannot be parsed or rendered (template.errors)
├── Unavailable             infrastructure: try again
│   ├── Unreached             no server answers: nothing was done
│   ├── StoreUnavailable      nothing was done
│   └── OutcomeUnknown        it may have been done: repeat, the second is refused as known
├── Fenced                  another owner has taken the shard
├── Stale                   another attempt has taken the command
├── NotAuthenticated        a request without a valid token
├── NotPermitted            the caller has no role that may do this
├── TooManyRequests         the caller has to wait: nothing was done
│   └── QuotaExceeded         a tenant uses as much as its quota allows
├── NotSigned               a call of a hook without the signature it needs
│                           (server.services.hooks)
├── ExecutionFailed         an execution that a client waits for did not complete (client.errors)
├── WaitTimeout             an execution has not ended in the time that a client waits
│                           (client.errors)
└── CorruptLog              an event cannot be decoded or folded: the execution is quarantined
"""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

MAX_MESSAGE_PART_CHARS = 450  # characters of each of two messages that are joined into one
SAMPLE_KEY = "sample"  # in `detail` of a failure: the reference of rows that show what is wrong


class Failure(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`error` in templates."""

    code: str
    message: str
    kind: str = "error"
    retryable: bool = False
    http_status: int | None = None
    sqlstate: str | None = None
    task: str | None = None
    attempt: int | None = None
    detail: dict[str, Any] = {}

    def to_template_map(self) -> dict[str, Any]:
        """The failure as templates see it. All fields are present, so that a guard may compare
        them; those that do not apply are null."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def join_later_failure(self, later: "Failure") -> "Failure":
        """Join this failure and one that happened while it was handled. Both messages are cut, so
        that neither displaces the other."""
        message = f"{_shorten_message(self.message)}; while this was handled, {later.code}: {_shorten_message(later.message)}"
        return replace(self, message=message, detail={**self.detail, "then": later.code})


def _shorten_message(message: str) -> str:
    if len(message) <= MAX_MESSAGE_PART_CHARS:
        return message
    return message[: MAX_MESSAGE_PART_CHARS - 1] + "…"


class NoetlError(Exception):
    """The facts of an error are attributes. `hint` says what to do next."""

    code = "ERROR"
    hint: str | None = None

    def __init__(self, message: str = "", *, hint: str | None = None, **facts: Any) -> None:
        super().__init__(message or type(self).__doc__ or self.code)
        if hint is not None:
            self.hint = hint
        for name, value in facts.items():
            setattr(self, name, value)


class InvalidInput(NoetlError):
    code = "INVALID_INPUT"


class BadReference(InvalidInput):
    code = "BAD_REFERENCE"


class NotFound(InvalidInput):
    code = "NOT_FOUND"


class Expired(NotFound):
    code = "RESULT_EXPIRED"


class Conflict(InvalidInput):
    code = "CONFLICT"


class Unavailable(NoetlError):
    code = "UNAVAILABLE"


class Unreached(Unavailable):
    """No server could be reached: nothing was done."""

    code = "SERVER_UNREACHED"


class StoreUnavailable(Unavailable):
    code = "STORE_UNAVAILABLE"


class OutcomeUnknown(Unavailable):
    code = "OUTCOME_UNKNOWN"


class NotAuthenticated(NoetlError):
    """The request has no valid token."""

    code = "NOT_AUTHENTICATED"


class NotPermitted(NoetlError):
    """The caller may not do this."""

    code = "NOT_PERMITTED"


class TooManyRequests(NoetlError):
    """The caller has failed too often, and may try again after `retry_after_s` seconds."""

    code = "TOO_MANY_REQUESTS"
    retry_after_s: int = 1


class QuotaExceeded(TooManyRequests):
    """A tenant uses as much as its quota allows. Nothing was started."""

    code = "QUOTA_EXCEEDED"
    retry_after_s: int = 5


class Fenced(NoetlError):
    code = "FENCED"


class Stale(NoetlError):
    code = "STALE_ATTEMPT"


class CorruptLog(NoetlError):
    code = "CORRUPT_LOG"
