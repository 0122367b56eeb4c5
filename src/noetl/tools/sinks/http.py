"""An HTTP address: the data as JSON, rows at most a batch to a request. Every request says in `Idempotency-Key` which one it is;
whether a repeated one counts once is up to the server."""

from collections.abc import AsyncIterator
from typing import Any

from msgspec.structs import replace

from noetl.tools.port import Call, Failed, Outcome, Rows, Success, Tool
from noetl.tools.sinks.records import BATCH, SinkError, SinkTarget, meant


async def write(http: Tool, target: SinkTarget, call: Call, value: Any) -> Outcome:
    if target.mode not in ("insert", "append"):
        raise SinkError(
            "SINK_TARGET", f"an http target knows the mode insert, not {target.mode}", kind="config"
        )
    sent = rows = 0
    async for body in bodies(meant(value)):
        key = call.key if not sent else f"{call.key}-{sent}"
        config = {
            "url": target.url,
            "method": target.method or "POST",
            "headers": target.headers,
            "body": body,
            "idempotent": True,
        }
        outcome = await http.run(replace(call, config=config, key=key))
        if isinstance(outcome, Failed) or not isinstance(outcome, Success):
            return outcome
        sent, rows = sent + 1, rows + (len(body) if isinstance(body, list) else 1)
    return Success({"row_count": rows, "requests": sent})


async def bodies(value: Any) -> AsyncIterator[Any]:
    if isinstance(value, Rows):
        async for batch in value.batches(BATCH):
            yield batch
    elif isinstance(value, list) and len(value) > BATCH:
        for start in range(0, len(value), BATCH):
            yield value[start : start + BATCH]
    elif value is not None:
        yield value
