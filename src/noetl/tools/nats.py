"""`nats`: publishes a message, sends a request, or reads or writes a key of a bucket.

| operation | needs | value |
|---|---|---|
| `publish` | `subject`, `value` | `{subject, bytes}`; a stream drops a repeated message (`Nats-Msg-Id`) |
| `request` | `subject`, `value` | `{subject, data}`: the answer of the first responder |
| `kv_get` | `bucket`, `key` | `{found, value, revision}`; a missing key is `found: false`, not an error |
| `kv_put` | `bucket`, `key`, `value` | `{revision}` |
| `kv_delete` | `bucket`, `key` | `{deleted: true}` |

The server is the `url` of `auth` (with `user`, `password` or `token`), else NOETL_NATS_URL.
Subjects and buckets of NoETL itself are refused. A message in JSON is decoded; any other text stays
text.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from nats.aio.client import Client, Srv
from nats.errors import Error, NoRespondersError
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import BucketNotFoundError, KeyNotFoundError
from nats.js.kv import KeyValue

from noetl.model.errors import Failure
from noetl.tools.egress.guard import EgressGuard, EgressRefused
from noetl.tools.port import Call, Failed, Outcome, Success

NATS_CONNECT_TIMEOUT_S = 2
NATS_ANSWER_TIMEOUT_S = 5.0  # for the answer to a request, unless the task has a timeout
OWN_SUBJECT_PREFIXES = ("noetl.", "$")
OWN_BUCKET_PREFIX = "noetl_"


class NatsError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Nats:
    kind = "nats"

    def __init__(self, url: str | None, guard: EgressGuard | None = None) -> None:
        self._url = url
        self._guard = guard or EgressGuard()

    async def run(self, call: Call) -> Outcome:
        try:
            operation = _find_operation(call)
            client = await self._open_client(call)
            try:
                return Success(await operation(client, call))
            finally:
                await client.close()
        except NatsError as error:
            return Failed(error.failure)
        except NoRespondersError:
            message = f"nobody answers requests to {call.config['subject']}"
            return _make_failed("NATS_NO_RESPONDERS", message, retryable=True)
        except NatsTimeout:
            return _make_failed(
                "TIMEOUT", "NATS did not answer in time", kind="timeout", retryable=True
            )
        except BucketNotFoundError:
            message = f"there is no bucket {call.config['bucket']!r}; make it first"
            return _make_failed("NATS_BUCKET_MISSING", message)
        except (Error, OSError) as error:
            return _make_failed("NATS_ERROR", f"{type(error).__name__}: {error}", retryable=True)

    async def _open_client(self, call: Call) -> Client:
        auth = call.auth if isinstance(call.auth, dict) else {}
        url = auth.get("url") or self._url
        if not url:
            message = "no NATS server: give `auth` with a `url`, or set NOETL_NATS_URL for workers"
            raise _make_config_error("NATS_MISSING", message)
        servers = [server.strip() for server in str(url).split(",")]
        login = {name: auth[name] for name in ("user", "password", "token") if auth.get(name)}
        client = GuardedClient(self._guard)
        try:
            await client.connect(
                servers,
                name="noetl",
                connect_timeout=NATS_CONNECT_TIMEOUT_S,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=_ignore_error,
                **login,
            )
        except (Error, OSError, ValueError) as error:
            if client.refused is not None:
                raise NatsError(client.refused.to_failure()) from None
            message = f"NATS does not answer: {type(error).__name__}: {error}"
            failure = Failure(
                code="NATS_UNAVAILABLE", kind="connection", message=message, retryable=True
            )
            raise NatsError(failure) from error
        return client


class GuardedClient(Client):
    """Connects to addresses that the guard has checked, also of servers that a server names."""

    def __init__(self, guard: EgressGuard) -> None:
        super().__init__()
        self._guard = guard
        self.refused: EgressRefused | None = None  # the last refusal, which the library drops

    async def _connect_to_server(self, s: Srv) -> None:
        host, port = s.uri.hostname, s.uri.port
        if s.uri.scheme not in ("nats", "tls") or not host or not port:
            raise Error(
                f"the address of a NATS server begins with nats:// or tls://, not {s.uri.scheme}://"
            )
        try:
            addresses = await self._guard.find_database_addresses(host, port)
        except EgressRefused as refused:
            self.refused = refused
            raise
        s.tls_name = s.tls_name or host
        for address in addresses[:-1]:
            with suppress(OSError, TimeoutError):
                return await super()._connect_to_server(_pin_server(s, address))
        await super()._connect_to_server(_pin_server(s, addresses[-1]))


def _pin_server(server: Srv, address: str) -> Srv:
    place = f"[{address}]" if ":" in address else address
    uri = server.uri._replace(netloc=f"{place}:{server.uri.port}")
    return Srv(uri, tls_name=server.tls_name)


async def _ignore_error(error: Exception) -> None:
    """Ignore errors of the connection: the operation raises them."""


# ---- operations ----

Operation = Callable[[Client, Call], Awaitable[Any]]


async def _publish_message(client: Client, call: Call) -> Any:
    subject = _read_subject(call)
    data = _encode_value(call.config.get("value"))
    await client.publish(subject, data, headers={"Nats-Msg-Id": call.key})
    await client.flush()
    return {"subject": subject, "bytes": len(data)}


async def _request_answer(client: Client, call: Call) -> Any:
    subject = _read_subject(call)
    data = _encode_value(call.config.get("value"))
    timeout = NATS_ANSWER_TIMEOUT_S
    if call.timeout is not None:
        timeout = call.timeout / 1_000_000
    answer = await client.request(subject, data, timeout=timeout)
    return {"subject": subject, "data": _decode_message(answer.data)}


async def _get_key(client: Client, call: Call) -> Any:
    entries, key = await _open_kv_bucket(client, call)
    try:
        entry = await entries.get(key)
    except KeyNotFoundError:
        return {"found": False, "value": None, "revision": None}
    value = _decode_message(entry.value or b"")
    return {"found": True, "value": value, "revision": entry.revision}


async def _put_key(client: Client, call: Call) -> Any:
    entries, key = await _open_kv_bucket(client, call)
    data = _encode_value(call.config.get("value"))
    return {"revision": await entries.put(key, data)}


async def _delete_key(client: Client, call: Call) -> Any:
    entries, key = await _open_kv_bucket(client, call)
    return {"deleted": await entries.delete(key)}


OPERATIONS: dict[str, Operation] = {
    "publish": _publish_message,
    "request": _request_answer,
    "kv_get": _get_key,
    "kv_put": _put_key,
    "kv_delete": _delete_key,
}


def _find_operation(call: Call) -> Operation:
    name = call.config.get("operation")
    operation = OPERATIONS.get(str(name))
    if operation is None:
        message = f"nats has no operation {name!r}; it has {', '.join(OPERATIONS)}"
        raise _make_config_error("NATS_OPERATION", message)
    return operation


def _read_subject(call: Call) -> str:
    subject = _read_text(call, "subject")
    if subject.startswith(OWN_SUBJECT_PREFIXES):
        message = f"the subject {subject!r} is NoETL's or the server's own; use another"
        raise _make_config_error("NATS_OWN", message)
    return subject


async def _open_kv_bucket(client: Client, call: Call) -> tuple[KeyValue, str]:
    """The bucket and the key in it."""
    bucket = _read_text(call, "bucket")
    key = _read_text(call, "key")
    if bucket.startswith(OWN_BUCKET_PREFIX):
        raise _make_config_error("NATS_OWN", f"the bucket {bucket!r} is NoETL's own; use another")
    jetstream = client.jetstream(timeout=NATS_ANSWER_TIMEOUT_S)
    return await jetstream.key_value(bucket), key


def _read_text(call: Call, field: str) -> str:
    value = call.config.get(field)
    if not isinstance(value, str) or not value.strip():
        raise _make_config_error("NATS_FIELD", f"`{field}` of nats must be text, not {value!r}")
    return value.strip()


def _encode_value(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return msgspec.json.encode(value)


def _decode_message(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _make_config_error("NATS_BINARY", "the message is neither JSON nor text") from None


def _make_config_error(code: str, message: str) -> NatsError:
    return NatsError(Failure(code=code, kind="config", message=message))


def _make_failed(
    code: str,
    message: str,
    *,
    kind: str = "nats",
    retryable: bool = False,
) -> Failed:
    failure = Failure(code=code, kind=kind, message=message, retryable=retryable)
    return Failed(failure)
