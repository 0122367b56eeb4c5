"""Knows the secrets of this worker, and removes them from everything that leaves it.

Each worker has one redactor. Code that resolves a secret registers it there. Secrets are removed
from the outcome of a tool (`calls.py`), from what is stored, from what is reported, and from the
lines of step logs. A secret is found as it is, and as base64, URL-quoted or JSON-escaped text.

A short secret is also an ordinary word, so replacing it everywhere would damage data. In values and
events only secrets of at least 8 characters are replaced, in errors and logs those of at least 4.
Shorter ones are not protected. The identity of an event (its step, its references, its names) is
never changed.
"""

import base64
import json
import logging
import re
from collections.abc import Iterator
from threading import Lock
from typing import Any, overload
from urllib.parse import quote, quote_plus

import msgspec

from noetl.caches import LruCache
from noetl.model.errors import Failure
from noetl.results.formats.tables import ArrowRecords
from noetl.tools.port import Failed, Log, Outcome, Success

MIN_SHORT_SECRET_CHARS, MIN_LONG_SECRET_CHARS = 4, 8  # characters
MAX_SECRET_FORMS = 1_000  # forms remembered; the oldest are forgotten first
# Fields of a credential that are not secret: hiding "localhost" would damage data for nothing.
PUBLIC_FIELDS = frozenset(
    (
        "type kind name provider host hostname server port database dbname db schema user username login email sslmode "
        "sslrootcert options application_name region header scope scopes audience tenant url_base base_url endpoint"
    ).split()
)
# Fields of events that hold data.
DATA_FIELDS = frozenset(
    (
        "result",
        "set",
        "cursor",
        "values",
        "items",
        "error",
        "plan",
        "message",
        "payload",
        "question",
    )
)
_PASSWORD_IN_ADDRESS = re.compile(r"://[^/\s:@]*:([^/\s@]+)@|\bpassword=(\S+)")


class Redactor:
    """The secrets of one worker, in all forms that they may appear in."""

    def __init__(self) -> None:
        self._replacements: LruCache[str, str] = LruCache(MAX_SECRET_FORMS)  # by form
        self._short: re.Pattern[str] | None = None
        self._long: re.Pattern[str] | None = None
        self._stale = False
        # Threads redact rows and log messages: none compiles patterns while a form is added.
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self._replacements)

    # ---- registering secrets ---------------------------------------------------------------------

    def register_credential(self, name: str, fields: Any) -> None:
        """Register every field of a credential, except those that are known to be no secret."""
        for path, value in _list_leaves(fields, ""):
            if path.rpartition(".")[2].lower() not in PUBLIC_FIELDS:
                self.register_secret(f"{name}.{path}" if path else name, value)
        if not isinstance(fields, dict):
            return
        password = fields.get("password")
        if password is not None:
            user = fields.get("username", fields.get("user", ""))
            self._add_form(
                base64.b64encode(f"{user}:{password}".encode()).decode(), f"***{name}***"
            )

    def register_secret(self, name: str, value: Any) -> None:
        """Register a secret. Only texts and numbers can be secrets."""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return
        for form in list_forms(str(value)):
            self._add_form(form, f"***{name}***")

    def _add_form(self, form: str, shown: str) -> None:
        if len(form) < MIN_SHORT_SECRET_CHARS:
            return
        if self._replacements.get(form) is not None:
            return
        with self._lock:
            self._replacements.put(form, shown)
            self._stale = True

    def _compile_patterns(self) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
        """The patterns that find short and long secrets."""
        if self._stale:
            with self._lock:
                # If two forms begin alike, the longer one is replaced.
                longest = sorted(self._replacements, key=len, reverse=True)
                self._short = _compile_any(longest)
                self._long = _compile_any(
                    [form for form in longest if len(form) >= MIN_LONG_SECRET_CHARS]
                )
                self._stale = False
        return self._short, self._long

    # ---- removing secrets ------------------------------------------------------------------------

    def redact_text(self, text: str, *, payload: bool = False) -> str:
        short, long = self._compile_patterns()
        pattern = long if payload else short
        if pattern is None:
            return text
        return pattern.sub(lambda match: self._replacements.peek(match[0]) or "***", text)

    def redact_value(self, value: Any, *, payload: bool = False) -> Any:
        """A JSON value without the secrets. Returns the same object if it has none."""
        if not self._replacements or not self._holds_secret(value, payload=payload):
            return value
        return self._redact_nested(value, payload=payload)

    def _holds_secret(self, value: Any, *, payload: bool) -> bool:
        """Whether the value holds a secret.

        Most values hold none, so this is fast: searching for one text after the other is faster
        than one search for many. It returns True for a value that cannot be encoded.
        """
        shortest = MIN_LONG_SECRET_CHARS if payload else MIN_SHORT_SECRET_CHARS
        try:
            written = msgspec.json.encode(value).decode()
        except (TypeError, ValueError, OverflowError, RecursionError):
            return True
        return any(form in written for form in self._replacements if len(form) >= shortest)

    def _redact_nested(self, value: Any, *, payload: bool) -> Any:
        if isinstance(value, str):
            if value.startswith("noetl://"):
                return value
            return self.redact_text(value, payload=payload)
        if isinstance(value, dict):
            cleaned: dict[Any, Any] = {}
            for key, part in value.items():
                if isinstance(key, str):
                    key = self.redact_text(key, payload=payload)
                cleaned[key] = self._redact_nested(part, payload=payload)
            return cleaned
        if isinstance(value, list | tuple):
            return [self._redact_nested(part, payload=payload) for part in value]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        if str(value) in self._replacements:
            return self.redact_text(str(value), payload=payload)
        return value

    def redact_rows(self, batch: Any) -> Any:
        """An Arrow batch without the secrets.

        A number that is one becomes null, because a column has one type.
        """
        if not self._replacements:
            return batch
        from noetl.pipeline.secrets.columns import (
            redact_batch,  # needs Arrow, which the batch has loaded
        )

        long = [form for form in self._replacements if len(form) >= MIN_LONG_SECRET_CHARS]
        return redact_batch(batch, long, lambda value: self._redact_nested(value, payload=True))

    def redact_records(self, records: ArrowRecords) -> Any:
        """The records without the secrets.

        If they may hold one, they become Python objects: a number that is a secret becomes text, which
        does not fit its column.
        """
        from noetl.pipeline.secrets.columns import may_hold_secret  # as above

        long = [form for form in list(self._replacements) if len(form) >= MIN_LONG_SECRET_CHARS]
        head = msgspec.to_builtins(records.head)
        in_head = self._holds_secret(head, payload=True)
        if not in_head and not any(may_hold_secret(batch, long) for batch in records.batches):
            return records
        return self.redact_value(records.value(), payload=True)

    def redact_failure(self, failure: Failure) -> Failure:
        if not self._replacements:
            return failure
        return msgspec.structs.replace(
            failure,
            message=self.redact_text(failure.message),
            detail=self.redact_value(failure.detail),
        )

    @overload
    def redact_outcome(self, outcome: Success | Failed) -> Success | Failed: ...
    @overload
    def redact_outcome(self, outcome: Outcome) -> Outcome: ...
    def redact_outcome(self, outcome: Outcome) -> Outcome:
        if not self._replacements:
            return outcome
        match outcome:
            case Failed(failure, facts, sample):
                # The sample is redacted when it is stored, as results are.
                return Failed(self.redact_failure(failure), self.redact_value(facts), sample)
            case Success(ArrowRecords() as records, facts):
                return Success(self.redact_records(records), self.redact_value(facts))
            case Success(value, facts):
                return Success(self.redact_value(value, payload=True), self.redact_value(facts))
            case _:
                return outcome

    def redact_event_fields(self, event: Any) -> Any:
        """The event without the secrets."""
        if not self._replacements or not self._holds_secret(event, payload=True):
            return event
        parts: dict[str, Any] = msgspec.to_builtins(event)
        for name, part in parts.items():
            if name in DATA_FIELDS:
                parts[name] = self._redact_field(part)
        child = parts.get("child")
        if isinstance(child, dict):
            for name in ("workload", "iter"):
                child[name] = self._redact_nested(child.get(name, {}), payload=True)
        return msgspec.convert(parts, type(event))

    def _redact_field(self, part: Any) -> Any:
        """A field of an event.

        Its top-level keys belong to the event and stay; the rest is data.
        """
        if isinstance(part, dict):
            return {
                name: self._redact_nested(member, payload=True) for name, member in part.items()
            }
        return self._redact_nested(part, payload=True)

    def redact_log(self, log: Log) -> Log:
        """A log that passes lines on without the secrets."""

        def write_redacted(stream: str, line: str) -> None:
            if self._replacements:
                line = self.redact_text(line)
            log(stream, line)

        return write_redacted


class RedactingFilter(logging.Filter):
    """A filter for the log handlers of a worker: no message and no traceback shows a secret."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        if self._redactor:
            record.msg = self._redactor.redact_text(record.getMessage())
            record.args = None
            if record.exc_info and not record.exc_text:
                record.exc_text = logging.Formatter().formatException(record.exc_info)
            if record.exc_text:
                record.exc_text = self._redactor.redact_text(record.exc_text)
            for name, value in vars(record).items():
                if isinstance(value, str) and name not in ("msg", "exc_text"):
                    setattr(record, name, self._redactor.redact_text(value))
        return True


def _compile_any(forms: list[str]) -> re.Pattern[str] | None:
    if not forms:
        return None
    return re.compile("|".join(map(re.escape, forms)))


def _list_leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The values of a nested structure that are neither maps nor lists, each with its path."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _list_leaves(part, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for part in value:
            yield from _list_leaves(part, path)
    else:
        yield path, value


def list_forms(value: str) -> Iterator[str]:
    """The value as it appears in a header, an address or a JSON text, and each long line of a value
    with several lines."""
    yield value
    try:
        encoded = base64.b64encode(value.encode()).decode()
    except UnicodeEncodeError:
        return
    yield encoded.rstrip("=")
    yield encoded.replace("+", "-").replace("/", "_").rstrip("=")
    yield quote(value, safe="")
    yield quote_plus(value)
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    lines = value.splitlines()
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= 2 * MIN_LONG_SECRET_CHARS)
    for match in _PASSWORD_IN_ADDRESS.finditer(value):
        yield match[1] or match[2]
