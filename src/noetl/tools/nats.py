"""`nats`: publish a message, ask for an answer, and read or write a key of a bucket.

| operation | needs | value |
|---|---|---|
| `publish` | `subject`, `value` | `{subject, bytes}`; a stream that has the message keeps one of two (`Nats-Msg-Id`) |
| `request` | `subject`, `value` | `{subject, data}`: what the first responder answers |
| `kv_get` | `bucket`, `key` | `{found, value, revision}`; a missing key is `found: false`, not an error |
| `kv_put` | `bucket`, `key`, `value` | `{revision}` |
| `kv_delete` | `bucket`, `key` | `{deleted: true}` |

The server is the `url` of `auth` (with `user`, `password` or `token`), else NOETL_NATS_URL. Subjects and buckets of NoETL itself
are refused. A message that is JSON is its value, any other text is text.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import nats
from nats.aio.client import Client
from nats.errors import Error, NoRespondersError
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import BucketNotFoundError, KeyNotFoundError
from nats.js.kv import KeyValue

from noetl.model.errors import Failure
from noetl.tools.port import Call, Failed, Outcome, Success

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 5.0  # for a request, unless the task has a timeout
OWN_SUBJECTS = ("noetl.", "$")
OWN_BUCKETS = "noetl_"


class NatsError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Nats:
    kind = "nats"

    def __init__(self, url: str | None) -> None:
        self._url = url

    async def run(self, call: Call) -> Outcome:
        try:
            operation = _operation(call)
            client = await self._connected(call)
            try:
                return Success(await operation(client, call))
            finally:
                await client.close()
        except NatsError as error:
            return Failed(error.failure)
        except NoRespondersError:
            return _failed(
                "NATS_NO_RESPONDERS",
                f"nobody answers requests to {call.config['subject']}",
                retryable=True,
            )
        except NatsTimeout:
            return _failed("TIMEOUT", "NATS did not answer in time", kind="timeout", retryable=True)
        except BucketNotFoundError:
            return _failed(
                "NATS_BUCKET_MISSING",
                f"there is no bucket {call.config['bucket']!r}; make it first",
            )
        except (Error, OSError) as error:
            return _failed("NATS_ERROR", f"{type(error).__name__}: {error}", retryable=True)

    async def _connected(self, call: Call) -> Client:
        auth = call.auth if isinstance(call.auth, dict) else {}
        url = auth.get("url") or self._url
        if not url:
            raise _refused(
                "NATS_MISSING",
                "no NATS server: give `auth` with a `url`, or set NOETL_NATS_URL for workers",
            )
        login = {name: auth[name] for name in ("user", "password", "token") if auth.get(name)}
        try:
            return await nats.connect(
                [each.strip() for each in str(url).split(",")],
                name="noetl",
                connect_timeout=CONNECT_SECONDS,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=_unheard,
                **login,
            )
        except (Error, OSError, ValueError) as error:
            message = f"NATS does not answer: {type(error).__name__}: {error}"
            failure = Failure(
                code="NATS_UNAVAILABLE", kind="connection", message=message, retryable=True
            )
            raise NatsError(failure) from error


async def _unheard(error: Exception) -> None:
    """What goes wrong is raised where it happens."""


# ---- operations ----

Operation = Callable[[Client, Call], Awaitable[Any]]


async def _publish(client: Client, call: Call) -> Any:
    subject, data = _subject(call), _bytes(call.config.get("value"))
    await client.publish(subject, data, headers={"Nats-Msg-Id": call.key})
    await client.flush()
    return {"subject": subject, "bytes": len(data)}


async def _request(client: Client, call: Call) -> Any:
    subject, data = _subject(call), _bytes(call.config.get("value"))
    wait = ANSWER_SECONDS if call.timeout is None else call.timeout / 1_000_000
    answer = await client.request(subject, data, timeout=wait)
    return {"subject": subject, "data": _value(answer.data)}


async def _get(client: Client, call: Call) -> Any:
    entries, key = await _bucket(client, call)
    try:
        entry = await entries.get(key)
    except KeyNotFoundError:
        return {"found": False, "value": None, "revision": None}
    return {"found": True, "value": _value(entry.value or b""), "revision": entry.revision}


async def _put(client: Client, call: Call) -> Any:
    entries, key = await _bucket(client, call)
    return {"revision": await entries.put(key, _bytes(call.config.get("value")))}


async def _delete(client: Client, call: Call) -> Any:
    entries, key = await _bucket(client, call)
    return {"deleted": await entries.delete(key)}


OPERATIONS: dict[str, Operation] = {
    "publish": _publish,
    "request": _request,
    "kv_get": _get,
    "kv_put": _put,
    "kv_delete": _delete,
}


def _operation(call: Call) -> Operation:
    name = call.config.get("operation")
    found = OPERATIONS.get(str(name))
    if found is None:
        raise _refused(
            "NATS_OPERATION", f"nats has no operation {name!r}; it has {', '.join(OPERATIONS)}"
        )
    return found


def _subject(call: Call) -> str:
    subject = _text(call, "subject")
    if subject.startswith(OWN_SUBJECTS):
        raise _refused(
            "NATS_OWN", f"the subject {subject!r} is NoETL's or the server's own; use another"
        )
    return subject


async def _bucket(client: Client, call: Call) -> tuple[KeyValue, str]:
    bucket, key = _text(call, "bucket"), _text(call, "key")
    if bucket.startswith(OWN_BUCKETS):
        raise _refused("NATS_OWN", f"the bucket {bucket!r} is NoETL's own; use another")
    return await client.jetstream(timeout=ANSWER_SECONDS).key_value(bucket), key


def _text(call: Call, field: str) -> str:
    value = call.config.get(field)
    if not isinstance(value, str) or not value.strip():
        raise _refused("NATS_FIELD", f"`{field}` of nats must be text, not {value!r}")
    return value.strip()


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _value(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _refused("NATS_BINARY", "the message is neither JSON nor text") from None


def _refused(code: str, message: str) -> NatsError:
    return NatsError(Failure(code=code, kind="config", message=message))


def _failed(code: str, message: str, *, kind: str = "nats", retryable: bool = False) -> Failed:
    return Failed(Failure(code=code, kind=kind, message=message, retryable=retryable))
