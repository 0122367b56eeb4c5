"""Knows the secrets of this worker, and removes them from everything that leaves it.

Each worker has one redactor. Code that resolves a secret registers it there, for the command that
uses it: no secret of a running command is forgotten, and of the others the latest stay known. Secrets
are removed from the outcome of a tool (`calls.py`), from what is stored, from what is reported, and
from the lines of step logs. A secret is found as it is, and in the encodings of `forms.py`.

A short secret is also an ordinary word, so replacing it everywhere would damage data. In values and
events only secrets of at least 8 characters are replaced, in errors and logs those of at least 4.
Shorter ones are not protected. The identity of an event (its step, its references, its names) is
never changed.

A text that was cut may end with the beginning of a secret, or start with the end of one. Such a
remainder of 6 characters or more is removed from both ends of the texts of an error, and beside the
marks of a cut (`…` and `...`) in every text. Tools that cut a value call `drop_cut_secret`.
"""

import logging
import re
from collections.abc import Iterator
from itertools import islice
from threading import Lock
from typing import Any, overload

import msgspec

from noetl.model.errors import Failure
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.secrets.form_index import FormIndex, FoundForm, encode_text
from noetl.pipeline.secrets.forms import (
    MIN_LONG_SECRET_CHARS,
    MIN_SHORT_SECRET_CHARS,
    list_base64_forms,
    list_forms,
)
from noetl.results.formats.tables import ArrowRecords
from noetl.tools.port import Failed, Log, Outcome, Progress, Success

MAX_IDLE_SECRETS = (
    1_000  # secrets of ended commands that stay known; the oldest are forgotten first
)
MAX_COMMAND_SECRETS = 2_000  # secrets of one command
MAX_COMMAND_SECRET_CHARS = 8 << 20  # characters of all secrets of one command
MAX_CUT_MARKS = 50  # marks of a cut that are looked at in one text
MAX_WHOLE_LINE_CHARS = 16 * 1024  # characters; a longer line of a log was cut, or will be
CUT_MARK = re.compile(r"…|\.\.\.")
HIDDEN = "***"
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


class KnownSecret(msgspec.Struct):
    """A secret with its forms. `holders` counts the commands that use it."""

    forms: tuple[str, ...]
    holders: int = 0


class CommandSecrets:
    """The secrets that one command uses. They stay known until it releases them."""

    def __init__(self, redactor: "Redactor") -> None:
        self._redactor = redactor
        self._keys: set[str] = set()
        self._chars = 0

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
            self._hold(f"{user}:{password}", name, is_login=True)

    def register_secret(self, name: str, value: Any) -> None:
        """Register a secret. Only texts and numbers can be secrets."""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return
        self._hold(str(value), name)

    def release(self) -> None:
        """The command has ended."""
        keys, self._keys = self._keys, set()
        self._chars = 0
        self._redactor.release_secrets(keys)

    def _hold(self, value: str, name: str, *, is_login: bool = False) -> None:
        if len(value) < MIN_SHORT_SECRET_CHARS:
            return
        key = f"login {value}" if is_login else f"value {value}"
        if key in self._keys:
            return
        self._chars += len(value)
        if len(self._keys) >= MAX_COMMAND_SECRETS or self._chars > MAX_COMMAND_SECRET_CHARS:
            raise TaskFailed(_make_limit_failure())
        self._keys.add(key)
        self._redactor.hold_secret(key, value, name, is_login=is_login)


def _make_limit_failure() -> Failure:
    message = (
        f"this step uses more than {MAX_COMMAND_SECRETS} secrets, or more than "
        f"{MAX_COMMAND_SECRET_CHARS >> 20} MB of them, and NoETL must know all of them to keep them out of logs and results; "
        "name only the entries of the keychain that the step needs, and keep large files out of credentials"
    )
    return Failure(code="SECRETS_TOO_MANY", kind="auth", message=message)


class Redactor:
    """The secrets of one worker, in all forms that they may appear in."""

    def __init__(self) -> None:
        self._known: dict[str, KnownSecret] = {}
        self._idle: dict[str, None] = {}  # the longest unused first
        self._shown: dict[str, str] = {}  # what replaces a form
        self._uses: dict[str, int] = {}  # how many secrets have this form
        self._numbers: dict[str, float] = {}  # secrets that are numbers
        self._index = FormIndex()
        self._worker = CommandSecrets(self)
        # Threads redact rows and log messages while forms are added.
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self._shown)

    # ---- registering secrets ---------------------------------------------------------------------

    def open_command(self) -> CommandSecrets:
        """The secrets of a command that begins. It releases them when it has ended."""
        return CommandSecrets(self)

    def register_credential(self, name: str, fields: Any) -> None:
        """Register a credential for the life of this redactor."""
        self._worker.register_credential(name, fields)

    def register_secret(self, name: str, value: Any) -> None:
        """Register a secret for the life of this redactor."""
        self._worker.register_secret(name, value)

    def hold_secret(self, key: str, value: str, name: str, *, is_login: bool) -> None:
        """Remember a secret until the caller releases it by its key."""
        with self._lock:
            known = self._known.get(key)
            if known is None:
                forms = list_base64_forms(value.encode()) if is_login else list_forms(value)
                known = self._known[key] = KnownSecret(tuple(self._add_forms(forms, name)))
                if not is_login and (number := _parse_number(value)) is not None:
                    self._numbers[value] = number
            self._idle.pop(key, None)
            known.holders += 1

    def release_secrets(self, keys: set[str]) -> None:
        """One holder less of each secret. Those without a holder stay known for a while."""
        with self._lock:
            for key in keys:
                known = self._known[key]
                known.holders -= 1
                if known.holders == 0:
                    self._idle[key] = None
            while len(self._idle) > MAX_IDLE_SECRETS:
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                self._forget(oldest)

    def _add_forms(self, forms: Iterator[str], name: str) -> Iterator[str]:
        shown = f"***{name}***"
        for form in dict.fromkeys(forms):
            if len(form) < MIN_SHORT_SECRET_CHARS:
                continue
            self._uses[form] = self._uses.get(form, 0) + 1
            if form not in self._shown:
                self._shown[form] = shown
                self._index.add(form)
            yield form

    def _forget(self, key: str) -> None:
        for form in self._known.pop(key).forms:
            self._uses[form] -= 1
            if not self._uses[form]:
                del self._uses[form], self._shown[form]
                self._numbers.pop(form, None)
                self._index.remove(form)

    # ---- removing secrets ------------------------------------------------------------------------

    def redact_text(self, text: str, *, payload: bool = False) -> str:
        if not self._shown:
            return text
        if "…" in text or "..." in text:
            text = self._redact_beside_marks(text)
        data = encode_text(text)
        if not self._index.may_hold(data):
            return text
        places = self._find_places(data, payload=payload)
        if not places:
            return text
        shown = [encode_text(self._shown.get(place.form, HIDDEN)) for place in places]
        return _decode_part(_replace_places(data, places, shown))

    def _find_places(self, data: bytes, *, payload: bool) -> list[FoundForm]:
        """Where secrets stand, in order. Secrets that overlap are one place, named by the first."""
        found = sorted(self._find_forms(data, payload=payload), key=_get_order)
        places: list[FoundForm] = []
        for each in found:
            if places and each.start < places[-1].end:
                last = places.pop()
                each = FoundForm(last.start, max(last.end, each.end), last.form)
            places.append(each)
        return places

    def _find_forms(self, data: bytes, *, payload: bool) -> Iterator[FoundForm]:
        shortest = MIN_LONG_SECRET_CHARS if payload else MIN_SHORT_SECRET_CHARS
        return self._index.find(data, shortest)

    def _holds_form(self, data: bytes, *, payload: bool) -> bool:
        if not self._index.may_hold(data):
            return False
        return next(self._find_forms(data, payload=payload), None) is not None

    def redact_value(self, value: Any, *, payload: bool = False) -> Any:
        """A JSON value without the secrets. Returns the same object if it has none."""
        if not self._shown or not self._holds_secret(value, payload=payload):
            return value
        return self._redact_nested(value, payload=payload)

    def _holds_secret(self, value: Any, *, payload: bool) -> bool:
        """Whether the value may hold a secret, or a part of one beside the mark of a cut.

        Most values hold none, so this is fast. It returns True for a value that cannot be encoded.
        """
        try:
            written = msgspec.json.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return True
        if self._holds_form(written, payload=payload):
            return True
        return self._has_cut_secret(written)

    # ---- texts that were cut ---------------------------------------------------------------------

    def _has_cut_secret(self, written: bytes) -> bool:
        """Whether a part of a secret stands beside the mark of a cut."""
        if "…".encode() not in written and b"..." not in written:
            return False
        text = written.decode()
        marks = islice(CUT_MARK.finditer(text), MAX_CUT_MARKS)
        return any(self._index.has_part_beside(text, mark.start(), mark.end()) for mark in marks)

    def drop_cut_secret(self, text: str) -> str:
        """A text that was cut at its end, without the beginning of a secret that the cut has left."""
        start = self._index.find_cut_end(text)
        if start is None:
            return text
        place = self._find_spanning(text, start)
        if place is None:
            return text[:start] + HIDDEN
        return _decode_part(encode_text(text)[: place.start]) + HIDDEN

    def _drop_cut_start(self, text: str) -> str:
        """A text that was cut at its start, without the end of a secret that the cut has left."""
        end = self._index.find_cut_start(text)
        if end is None:
            return text
        place = self._find_spanning(text, end)
        if place is None:
            return HIDDEN + text[end:]
        return HIDDEN + _decode_part(encode_text(text)[place.end :])

    def _find_spanning(self, text: str, at: int) -> FoundForm | None:
        """The whole secret around this character: it must not be cut in two."""
        data, at_byte = encode_text(text), len(encode_text(text[:at]))
        for place in self._find_places(data, payload=False):
            if place.start < at_byte < place.end:
                return place
        return None

    def _redact_beside_marks(self, text: str) -> str:
        """The text without the parts of secrets beside the marks of cuts."""
        parts = CUT_MARK.split(text, MAX_CUT_MARKS)
        if len(parts) == 1:
            return text
        marks = CUT_MARK.findall(text)
        for at in range(len(parts)):
            if at:
                parts[at] = self._drop_cut_start(parts[at])
            if at + 1 < len(parts):
                parts[at] = self.drop_cut_secret(parts[at])
        return "".join(
            part if at + 1 == len(parts) else part + marks[at] for at, part in enumerate(parts)
        )

    def _redact_cut_text(self, text: str) -> str:
        """A text of an error, which a tool may have cut at either end."""
        if self._index.is_middle(text):
            return HIDDEN
        return self.redact_text(self.drop_cut_secret(self._drop_cut_start(text)))

    def _redact_cut_value(self, value: Any) -> Any:
        """The detail of an error: each of its texts may have been cut."""
        if isinstance(value, str) and not value.startswith("noetl://"):
            return self._redact_cut_text(value)
        if isinstance(value, dict):
            return {
                self._redact_nested(key, payload=False): self._redact_cut_value(part)
                for key, part in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._redact_cut_value(part) for part in value]
        return self._redact_nested(value, payload=False)

    # ---- values ----------------------------------------------------------------------------------

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
        if str(value) in self._shown:
            return self.redact_text(str(value), payload=payload)
        return value

    def redact_rows(self, batch: Any) -> Any:
        """An Arrow batch without the secrets.

        A number that is one becomes null, because a column has one type.
        """
        if not self._shown:
            return batch
        from noetl.pipeline.secrets.columns import (
            redact_batch,  # needs Arrow, which the batch has loaded
        )

        return redact_batch(
            batch,
            self._holds_long_form,
            self._list_long_numbers(),
            self._clean_stored,
        )

    def _holds_long_form(self, data: bytes) -> bool:
        return self._holds_form(data, payload=True)

    def _clean_stored(self, value: Any) -> Any:
        if isinstance(value, bytes):
            places = self._find_places(value, payload=True)
            return _replace_places(value, places, [HIDDEN.encode()] * len(places))
        return self._redact_nested(value, payload=True)

    def _list_long_numbers(self) -> dict[str, float]:
        """The numbers that are secrets, by their text."""
        numbers = list(self._numbers.items())
        return {text: number for text, number in numbers if len(text) >= MIN_LONG_SECRET_CHARS}

    def redact_records(self, records: ArrowRecords) -> Any:
        """The records without the secrets.

        If they may hold one, they become Python objects: a number that is a secret becomes text, which
        does not fit its column.
        """
        from noetl.pipeline.secrets.columns import may_hold_secret  # as above

        numbers = list(self._list_long_numbers().values())
        head = msgspec.to_builtins(records.head)
        in_head = self._holds_secret(head, payload=True)
        if not in_head and not any(
            may_hold_secret(batch, self._holds_long_form, numbers) for batch in records.batches
        ):
            return records
        return self.redact_value(records.value(), payload=True)

    def redact_failure(self, failure: Failure) -> Failure:
        if not self._shown:
            return failure
        return msgspec.structs.replace(
            failure,
            message=self._redact_cut_text(failure.message),
            detail=self._redact_cut_value(failure.detail),
        )

    @overload
    def redact_outcome(self, outcome: Success | Failed) -> Success | Failed: ...
    @overload
    def redact_outcome(self, outcome: Outcome) -> Outcome: ...
    def redact_outcome(self, outcome: Outcome) -> Outcome:
        if not self._shown:
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
        if not self._shown or not self._holds_secret(event, payload=True):
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
            if self._shown:
                if len(line) > MAX_WHOLE_LINE_CHARS:
                    line = self.drop_cut_secret(line)
                line = self.redact_text(line)
            log(stream, line)

        return write_redacted

    def redact_progress(self, progress: Progress) -> Progress:
        """A progress that passes texts on without the secrets."""

        def tell_redacted(text: str) -> None:
            progress(self.redact_text(text))

        return tell_redacted


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


def _get_order(found: FoundForm) -> tuple[int, int]:
    """By place; of several at one place the longest first."""
    return found.start, -found.end


def _replace_places(data: bytes, places: list[FoundForm], shown: list[bytes]) -> bytes:
    parts: list[bytes] = []
    end = 0
    for place, text in zip(places, shown, strict=True):
        parts += (data[end : place.start], text)
        end = place.end
    parts.append(data[end:])
    return b"".join(parts)


def _decode_part(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
