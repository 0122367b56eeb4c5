"""Values that must not leave this worker, and their removal from whatever does.

Each worker has one redactor; whoever resolves a secret tells it. Its doors are: what a tool gives back (`perform`), what is put
into the store, what is reported, and the lines of step logs. A value is found as it is, and as base64, URL-quoted or
JSON-escaped.

A short secret is also an ordinary word: replacing it everywhere would damage data. So in values and events only secrets of at
least `LONG` characters are replaced, in errors and logs those of at least `SHORT`; shorter ones are not protected. What makes an
event that event (its step, its references, its names) is never touched.
"""

import base64
import json
import logging
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, overload
from urllib.parse import quote, quote_plus

import msgspec

from noetl.model.errors import Failure
from noetl.tools.port import Failed, Log, Outcome, Success

SHORT, LONG = 4, 8
MOST = 1_000  # forms remembered; the oldest are forgotten first
# fields of a credential that are not secret: hiding "localhost" would damage data and protect nothing
PLAIN = frozenset(
    (
        "type kind name provider host hostname server port database dbname db schema user username login email sslmode "
        "sslrootcert options application_name region header scope scopes audience tenant url_base base_url endpoint"
    ).split()
)
# fields of events that hold what came from data
CARRYING = frozenset(
    ("result", "set", "cursor", "values", "items", "error", "plan", "message", "payload")
)
_IN_ADDRESS = re.compile(r"://[^/\s:@]*:([^/\s@]+)@|\bpassword=(\S+)")


class Redactor:
    def __init__(self) -> None:
        self._shown: OrderedDict[str, str] = OrderedDict()  # form: what stands in its place
        self._short: re.Pattern[str] | None = None
        self._long: re.Pattern[str] | None = None
        self._stale = False

    def __bool__(self) -> bool:
        return bool(self._shown)

    # ---- what is secret ------------------------------------------------------------------------------------------------------

    def credential(self, name: str, fields: Any) -> None:
        """Every field of a credential, but those that are known to be plain."""
        for path, value in _leaves(fields, ""):
            if path.rpartition(".")[2].lower() not in PLAIN:
                self.secret(f"{name}.{path}" if path else name, value)
        if isinstance(fields, dict) and (password := fields.get("password")) is not None:
            user = fields.get("username", fields.get("user", ""))
            self._add(base64.b64encode(f"{user}:{password}".encode()).decode(), f"***{name}***")

    def secret(self, name: str, value: Any) -> None:
        if not isinstance(value, str):
            if isinstance(value, bool) or not isinstance(value, int | float):
                return
            value = str(value)
        for form in forms(value):
            self._add(form, f"***{name}***")

    def _add(self, form: str, shown: str) -> None:
        if len(form) < SHORT:
            return
        if form in self._shown:
            self._shown.move_to_end(form)
            return
        self._shown[form] = shown
        self._stale = True
        while len(self._shown) > MOST:
            self._shown.popitem(last=False)

    def _patterns(self) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
        if self._stale:
            longest = sorted(
                self._shown, key=len, reverse=True
            )  # of two that begin alike the longer one is replaced
            self._short = _any_of(longest)
            self._long = _any_of([form for form in longest if len(form) >= LONG])
            self._stale = False
        return self._short, self._long

    # ---- what is removed -----------------------------------------------------------------------------------------------------

    def text(self, text: str, *, payload: bool = False) -> str:
        short, long = self._patterns()
        pattern = long if payload else short
        return (
            text
            if pattern is None
            else pattern.sub(lambda found: self._shown.get(found[0], "***"), text)
        )

    def value(self, value: Any, *, payload: bool = False) -> Any:
        """A JSON value without the secrets; itself when there are none in it."""
        if not self._shown or not self._found(value, payload=payload):
            return value
        return self._clean(value, payload=payload)

    def _found(self, value: Any, *, payload: bool) -> bool:
        """Quick, since most values hold none: looking for one text after the other is faster than for any of many. What cannot
        be encoded is looked at piece by piece."""
        shortest = LONG if payload else SHORT
        try:
            written = msgspec.json.encode(value).decode()
        except (TypeError, ValueError, OverflowError, RecursionError):
            return True
        return any(form in written for form in self._shown if len(form) >= shortest)

    def _clean(self, value: Any, *, payload: bool) -> Any:
        if isinstance(value, str):
            return value if value.startswith("noetl://") else self.text(value, payload=payload)
        if isinstance(value, dict):
            return {
                self.text(key, payload=payload) if isinstance(key, str) else key: self._clean(
                    part, payload=payload
                )
                for key, part in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._clean(part, payload=payload) for part in value]
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and str(value) in self._shown
        ):
            return self.text(str(value), payload=payload)
        return value

    def batch(self, batch: Any) -> Any:
        """Rows of Arrow without the secrets; a number that is one becomes null, for a column has one type."""
        if not self._shown:
            return batch
        from noetl.pipeline.columns import cleaned  # Arrow is here already: this is a batch of it

        long = [form for form in self._shown if len(form) >= LONG]
        return cleaned(batch, long, lambda value: self._clean(value, payload=True))

    def failure(self, failure: Failure) -> Failure:
        if not self._shown:
            return failure
        return msgspec.structs.replace(
            failure, message=self.text(failure.message), detail=self.value(failure.detail)
        )

    @overload
    def outcome(self, outcome: Success | Failed) -> Success | Failed: ...
    @overload
    def outcome(self, outcome: Outcome) -> Outcome: ...
    def outcome(self, outcome: Outcome) -> Outcome:
        if not self._shown:
            return outcome
        match outcome:
            case Failed(failure, facts, sample):
                return Failed(
                    self.failure(failure), self.value(facts), sample
                )  # stored, and cleaned, as results are
            case Success(value, facts):
                return Success(self.value(value, payload=True), self.value(facts))
            case _:
                return outcome

    def struct(self, event: Any) -> Any:
        """An event as it may be recorded."""
        if not self._shown or not self._found(event, payload=True):
            return event
        parts = {
            name: self._part(part) if name in CARRYING else part
            for name, part in msgspec.to_builtins(event).items()
        }
        if isinstance(child := parts.get("child"), dict):
            carried = {
                name: self._clean(child.get(name, {}), payload=True)
                for name in ("workload", "iter")
            }
            parts["child"] = {**child, **carried}
        return msgspec.convert(parts, type(event))

    def _part(self, part: Any) -> Any:
        """Its own names are the event's, whatever the secrets are; those below them came from data."""
        if isinstance(part, dict):
            return {name: self._clean(each, payload=True) for name, each in part.items()}
        return self._clean(part, payload=True)

    def log(self, log: Log) -> Log:
        def write(stream: str, line: str) -> None:
            log(stream, self.text(line) if self._shown else line)

        return write


class Clean(logging.Filter):
    """For the handlers of a worker: no message and no traceback shows a secret."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        if self._redactor:
            record.msg, record.args = self._redactor.text(record.getMessage()), None
            if record.exc_info and not record.exc_text:
                record.exc_text = logging.Formatter().formatException(record.exc_info)
            if record.exc_text:
                record.exc_text = self._redactor.text(record.exc_text)
            for name, value in vars(record).items():
                if isinstance(value, str) and name not in ("msg", "exc_text"):
                    setattr(record, name, self._redactor.text(value))
        return True


def _any_of(forms: list[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, forms))) if forms else None


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _leaves(part, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part, path)
    else:
        yield path, value


def forms(value: str) -> Iterator[str]:
    """The value, and how it looks in a header, an address, a JSON text; each long line of one that has several."""
    yield value
    try:
        encoded = base64.b64encode(value.encode()).decode()
    except UnicodeEncodeError:
        return
    yield encoded.rstrip("=")
    yield encoded.replace("+", "-").replace("/", "_").rstrip("=")
    yield quote(value, safe="")
    yield quote_plus(value)
    yield from (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    lines = value.splitlines()
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= 2 * LONG)
    for found in _IN_ADDRESS.finditer(value):
        yield found[1] or found[2]
