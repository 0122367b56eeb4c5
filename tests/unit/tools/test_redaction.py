"""Secrets in every encoding, at every cut, and beside many others."""

import base64
import html
import json
import random
import shlex
import string
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.model.errors import Failure
from noetl.pipeline.failures import TaskFailed, limit_failure
from noetl.pipeline.secrets import redaction
from noetl.pipeline.secrets.form_index import FRAGMENT_CHARS
from noetl.pipeline.secrets.redaction import Redactor
from noetl.tools.port import Failed, Success

# Characters that every encoding changes, and a token as services make them.
MAX_ALIKE_S = 2.0  # seconds; searching for each of them in each text takes twenty
ODD = "pä/ss w+rd?'\"&<ö>\\=x%y~"
TOKEN = "CANARYtoken0123456789abcdefghijklmnopq"
ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 without padding": lambda text: base64.b64encode(text.encode()).decode().rstrip("="),
    "base64 for addresses": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "base64 after one byte": lambda text: base64.b64encode(f"a{text}".encode()).decode(),
    "base64 after two bytes": lambda text: base64.b64encode(f"ab{text}".encode()).decode(),
    "base64 inside a text": lambda text: base64.urlsafe_b64encode(f"abc{text}x".encode()).decode(),
    "URL": lambda text: quote(text, safe=""),
    "URL, lower case": lambda text: _lower_escapes(quote(text, safe="")),
    "path": quote,
    "form": quote_plus,
    "URL, twice": lambda text: quote(quote(text, safe=""), safe=""),
    "JSON": lambda text: json.dumps(text),
    "JSON, not ASCII": lambda text: json.dumps(text, ensure_ascii=False),
    "JSON, escaped slashes": lambda text: json.dumps(text).replace("/", "\\/"),
    "JSON, twice": lambda text: json.dumps(json.dumps(text)),
    "HTML": html.escape,
    "HTML, decimal": lambda text: html.escape(text).replace("&#x27;", "&#39;"),
    "hex": lambda text: text.encode().hex(),
    "HEX": lambda text: text.encode().hex().upper(),
    "repr": repr,
    "repr of bytes": lambda text: repr(text.encode()),
    "shell": shlex.quote,
    "SQL": lambda text: "'" + text.replace("'", "''") + "'",
}


def _lower_escapes(text: str) -> str:
    parts = text.split("%")
    return "%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])


@pytest.mark.parametrize("secret", [ODD, TOKEN], ids=["odd", "token"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_secret_is_found_in_every_encoding(encoding: str, secret: str) -> None:
    redactor = Redactor()
    redactor.register_secret("api", secret)
    written = ENCODINGS[encoding](secret)
    cleaned = redactor.redact_text(f"before {written} after")
    assert "***api***" in cleaned, cleaned
    assert cleaned.startswith("before ")
    assert cleaned.endswith(" after")
    assert _longest_common(written, cleaned) < FRAGMENT_CHARS
    stored = redactor.redact_value({"rows": [{"a": f"<{written}>"}]}, payload=True)
    assert "***api***" in stored["rows"][0]["a"]


def _longest_common(text: str, other: str) -> int:
    return max(
        (
            size
            for start in range(len(text))
            for size in range(1, len(text) - start + 1)
            if text[start : start + size] in other
        ),
        default=0,
    )


@given(
    secret=st.text(st.characters(codec="utf-8"), min_size=8, max_size=40),
    encoding=st.sampled_from(sorted(ENCODINGS)),
    others=st.integers(0, 40),
    before=st.text(max_size=20),
)
def test_any_secret_is_found_among_others(
    secret: str, encoding: str, others: int, before: str
) -> None:
    redactor = Redactor()
    for number in range(others):  # with many, the index is used
        redactor.register_secret(f"other{number}", f"another secret {number:04} of many")
    redactor.register_secret("api", secret)
    assert secret not in redactor.redact_text(f"{before}{secret}")
    assert "***" in redactor.redact_text(before + ENCODINGS[encoding](secret))


# ---- cuts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(FRAGMENT_CHARS, len(TOKEN)))
def test_part_of_a_secret_at_the_end_of_a_message_is_removed(length: int) -> None:
    redactor = Redactor()
    redactor.register_secret("api", TOKEN)
    failure = Failure(
        code="X",
        message=f"no access with {TOKEN[:length]}",
        detail={"body": f"x{TOKEN[:length]}", "stderr": f"{TOKEN[-length:]} is wrong"},
    )
    cleaned = redactor.redact_failure(failure)
    assert cleaned.message == "no access with ***"
    assert cleaned.detail == {"body": "x***", "stderr": "*** is wrong"}


@pytest.mark.parametrize("mark", ["…", "..."])
def test_part_of_a_secret_beside_the_mark_of_a_cut_is_removed(mark: str) -> None:
    redactor = Redactor()
    redactor.register_secret("api", TOKEN)
    text = f"a {TOKEN[:20]}{mark} b {mark}{TOKEN[-20:]} c {TOKEN}{mark}"
    expected = f"a ***{mark} b {mark}*** c ***api***{mark}"
    assert redactor.redact_text(text) == expected
    assert redactor.redact_value([text], payload=True) == [expected]


def test_middle_of_a_long_secret_is_removed() -> None:
    redactor = Redactor()
    key = "".join(random.Random(1).choices(string.ascii_letters, k=3_000))
    redactor.register_secret("key", key)
    failure = Failure(code="X", message="no", detail={"stderr": key[1_000:1_800]})
    assert redactor.redact_failure(failure).detail == {"stderr": "***"}


def test_whole_secret_at_a_cut_is_not_cut_in_two() -> None:
    """The end of the first secret is the beginning of the second one."""
    redactor = Redactor()
    redactor.register_secret("first", "0123456789abcdef")
    redactor.register_secret("second", "9abcdefghijklmno")
    assert redactor.drop_cut_secret("x 0123456789abcdef") == "x ***"
    failure = redactor.redact_failure(Failure(code="X", message="x 0123456789abcdef"))
    assert failure.message == "x ***"


def test_texts_that_only_look_cut_stay() -> None:
    redactor = Redactor()
    redactor.register_secret("db", "postgresql://ann:s3cret-s3cret@localhost/noetl")
    for text in ("postgresql://", "no driver for postgresql", "wait...", "… and so on", "s3cr"):
        assert redactor.redact_failure(Failure(code="X", message=text)).message == text
        assert redactor.redact_text(text) == text


@given(
    limit=st.integers(0, 120),
    before=st.integers(0, 60),
    secret=st.text(string.ascii_letters + string.digits, min_size=12, max_size=60),
)
def test_cut_at_any_place_leaves_no_part(limit: int, before: int, secret: str) -> None:
    redactor = Redactor()
    redactor.register_secret("api", secret)
    text = "." * before + secret + "." * 10
    for cut in (text[:limit], text[-limit:]):
        failed = redactor.redact_outcome(Failed(Failure(code="X", message=cut)))
        assert isinstance(failed, Failed)
        assert _longest_common(secret, failed.failure.message) < FRAGMENT_CHARS
    shown = redactor.redact_text(redactor.drop_cut_secret(text[:limit]))
    assert _longest_common(secret, shown) < FRAGMENT_CHARS


def test_failure_that_is_made_small_after_it_was_cleaned_shows_nothing() -> None:
    redactor = Redactor()
    redactor.register_secret("api", TOKEN)
    for before in range(960, 1_001):
        failure = Failure(code="X", message="x" * before + TOKEN, detail={"body": TOKEN * 100})
        limited = limit_failure(redactor.redact_failure(failure))
        assert _longest_common(TOKEN, limited.message) < FRAGMENT_CHARS
        assert _longest_common(TOKEN, str(limited.detail)) < FRAGMENT_CHARS


def test_line_that_was_cut_shows_no_part() -> None:
    redactor = Redactor()
    redactor.register_secret("api", TOKEN)
    lines: list[str] = []
    log = redactor.redact_log(lambda _, line: lines.append(line))
    log("stdout", "x" * 20_000 + TOKEN[:30])
    assert lines == ["x" * 20_000 + "***"]


# ---- how long secrets are known ------------------------------------------------------------------------------------------


def test_secret_of_a_running_command_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "MAX_IDLE_SECRETS", 500)
    redactor = Redactor()
    waiting = redactor.open_command()
    waiting.register_secret("api", TOKEN)
    for number in range(2 * redaction.MAX_IDLE_SECRETS):
        other = redactor.open_command()
        other.register_secret("other", f"another secret {number}")
        other.release()
    assert redactor.redact_text(TOKEN) == "***api***"
    assert redactor.redact_text("another secret 0") == "another secret 0"  # long ended
    latest = f"another secret {2 * redaction.MAX_IDLE_SECRETS - 1}"
    assert redactor.redact_text(latest) == "***other***"


def test_secret_of_two_commands_stays_until_both_have_ended() -> None:
    redactor = Redactor()
    first, second = redactor.open_command(), redactor.open_command()
    for command in (first, second):
        command.register_credential("db", {"user": "ann", "password": TOKEN})
    first.release()
    first.release()  # once more changes nothing
    _forget_idle(redactor)
    assert redactor.redact_text(TOKEN) == "***db.password***"
    second.release()
    _forget_idle(redactor)
    assert redactor.redact_text(TOKEN) == TOKEN


def _forget_idle(redactor: Redactor) -> None:
    other = redactor.open_command()
    for number in range(redaction.MAX_IDLE_SECRETS + 1):
        other.register_secret("other", f"an idle secret {number}")
    other.release()


def test_command_with_too_many_secrets_is_refused() -> None:
    command = Redactor().open_command()
    for number in range(redaction.MAX_COMMAND_SECRETS):
        command.register_secret("many", f"a secret {number}")
    with pytest.raises(TaskFailed) as failing:
        command.register_secret("many", "one too many")
    assert failing.value.failure.code == "SECRETS_TOO_MANY"
    assert "name only the entries" in failing.value.failure.message


def test_many_alike_secrets_do_not_slow_each_other() -> None:
    """Each is found, in a time that does not grow with the square of their number."""
    redactor = Redactor()
    secrets = [f"one-of-many-secrets-{number:05}" for number in range(1_500)]
    redactor.register_credential("many", {"all": secrets})
    began = time.process_time()
    cleaned = redactor.redact_value({"input": secrets}, payload=True)
    assert cleaned == {"input": ["***many.all***"] * len(secrets)}
    assert redactor.redact_text(" ".join(secrets)) == " ".join(["***many.all***"] * len(secrets))
    assert time.process_time() - began < MAX_ALIKE_S


def test_secrets_that_overlap_leave_nothing_of_either() -> None:
    redactor = Redactor()
    redactor.register_secret("first", "0123456789abcdef")
    redactor.register_secret("second", "9abcdefghijklmno")
    assert redactor.redact_text("<0123456789abcdefghijklmno>") == "<***first***>"


def test_progress_is_cleaned_before_it_is_cut() -> None:
    redactor = Redactor()
    redactor.register_secret("api", TOKEN)
    told: list[str] = []
    redactor.redact_progress(told.append)(f"asked with {TOKEN}")
    assert told == ["asked with ***api***"]


def test_value_without_secrets_stays_the_same_object() -> None:
    redactor = Redactor()
    redactor.register_secret("api", TOKEN)
    value = {"rows": [{"text": "wait... and see …", "n": 1}]}
    assert redactor.redact_value(value, payload=True) is value
    assert redactor.redact_outcome(Success(value)) == Success(value)
