"""Sends the data as JSON to a URL, at most one batch of rows in a request.

Every request has an `Idempotency-Key`. The server must use it to ignore a repeated request.
"""

from collections.abc import AsyncIterator
from typing import Any

from msgspec.structs import replace

from noetl.tools.port import Call, Outcome, Rows, Success, Tool
from noetl.tools.sink.records import SINK_BATCH_ROWS, SinkError, SinkTarget, unwrap_result


async def send_rows(http: Tool, target: SinkTarget, call: Call, value: Any) -> Outcome:
    if target.mode not in ("insert", "append"):
        message = f"an http target knows the mode insert, not {target.mode}"
        raise SinkError("SINK_TARGET", message, kind="config")
    requests = 0
    rows = 0
    async for body in iterate_bodies(unwrap_result(value)):
        key = call.key
        if requests > 0:
            key = f"{call.key}-{requests}"
        config = {
            "url": target.url,
            "method": target.method or "POST",
            "headers": target.headers,
            "body": body,
            "idempotent": True,
        }
        outcome = await http.run(replace(call, config=config, key=key))
        if not isinstance(outcome, Success):
            return outcome
        requests += 1
        rows += len(body) if isinstance(body, list) else 1
    return Success({"row_count": rows, "requests": requests})


async def iterate_bodies(value: Any) -> AsyncIterator[Any]:
    """The bodies of the requests: batches of rows, or a single value."""
    if isinstance(value, Rows):
        async for batch in value.batches(SINK_BATCH_ROWS):
            yield batch
    elif isinstance(value, list) and len(value) > SINK_BATCH_ROWS:
        for start in range(0, len(value), SINK_BATCH_ROWS):
            yield value[start : start + SINK_BATCH_ROWS]
    elif value is not None:
        yield value
