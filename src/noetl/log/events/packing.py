"""The events of a part as one JSON array, and back.

An element is `[key, meta, result]`; events without an envelope have no result. `meta` and `result`
are the bytes of the event, so nothing changes on the way. The sequence numbers of a part are
consecutive.
"""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw, Struct

from noetl.log.events.event_halves import join_encoded_event
from noetl.log.events.port import RecordedEvent
from noetl.model import codec
from noetl.model.ids import ExecutionId
from noetl.model.stored_text import replace_nul

_NO_RESULT = Raw()


class PackedEvent(Struct, frozen=True, array_like=True):
    key: str
    meta: Raw
    result: Raw = _NO_RESULT


_packed = msgspec.json.Decoder(list[PackedEvent])


def encode_key(key: str) -> str:
    """The key as it stands in the array."""
    return codec.encode(replace_nul(key)).decode()


def pack_events(events: Iterable[tuple[str, str, str | None]]) -> str:
    """The array of these events: key, meta and result of each."""
    elements: list[str] = []
    for key, meta, result in events:
        element = f"{encode_key(key)},{meta}"
        if result is not None:
            element = f"{element},{result}"
        elements.append(f"[{element}]")
    return f"[{','.join(elements)}]"


def unpack_events(
    execution_id: ExecutionId, shard: int, last_seq: int, epoch: int, events: str
) -> Iterator[RecordedEvent]:
    """The events of a part in order."""
    packed = _packed.decode(events)
    first = last_seq - len(packed) + 1
    for seq, element in enumerate(packed, first):
        event = join_encoded_event(bytes(element.meta), bytes(element.result) or None)
        yield RecordedEvent(execution_id, shard, seq, epoch, event)
