"""An event in two halves: its envelope and the rest."""

from noetl.model import codec
from noetl.model.events import Event, get_result


def split_event(event: Event, data: bytes) -> tuple[str, str | None]:
    """Split an event into `meta` and `result`.

    `meta` is the event's bytes without its envelope, `result` the envelope, byte for byte.
    """
    result = get_result(event)
    if result is None:
        return data.decode(), None
    envelope = codec.encode(result)
    field = b',"result":' + envelope
    head, _, tail = data.partition(field)
    # the same bytes may stand inside another field
    while field in tail and not _is_same_event(head + tail, envelope, data):
        more, _, tail = tail.partition(field)
        head += field + more
    return (head + tail).decode(), envelope.decode()


def join_event(meta: str, result: str | None) -> Event:
    return join_encoded_event(meta.encode(), None if result is None else result.encode())


def join_encoded_event(meta: bytes, result: bytes | None) -> Event:
    if result is None:
        return codec.decode_event(meta)
    return codec.decode_event(_insert_result(meta, result))


def _insert_result(meta: bytes, result: bytes) -> bytes:
    return meta[:-1] + b',"result":' + result + b"}"


def _is_same_event(meta: bytes, result: bytes, data: bytes) -> bool:
    return codec.encode(codec.decode_event(_insert_result(meta, result))) == data
