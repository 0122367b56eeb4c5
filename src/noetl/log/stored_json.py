"""JSON that only this package reads, as the database stores it: compressed with a dictionary.

States of executions and bodies of commands are short and full of the same names. A dictionary of
those names makes them a third smaller than compression alone. Rows of older versions hold the JSON
itself: a zlib stream begins with `x`, a JSON object with `{`.
"""

import zlib

_LEVEL = 1  # higher levels take twice as long for a tenth less
_ZLIB_FIRST_BYTE = b"x"
# Stored rows need it as it is: never change it. A stream names its dictionary by a checksum, so that
# another one could stand beside it.
DICTIONARY = (
    b'"tokens":"timers":"signals":"calls":"failure":{"code":"","message":"","kind":"","retryable":'
    b'"loop":{"mode":"parallel","collection":{"kind":"reference","size":"window":"chunk":"claimed":'
    b'"kind":"chunk","first":,"count":,"iterator":"item","priority":"attempt":"journal":{"goto":1,'
    b'"runs":{"results":{"prev":"last":"workload":{"ctx":{"args":{"state":null,"scratch":{"rows":,'
    b'"row_count":1,"columns":["meta":{"tool":{"kind":"python","version":"origins":["}],'
    b'"event":"call.done","verdicts":[{"step":"","verdict":"taken"}],"order":,"entered_at":17,'
    b'"ended_at":17{"execution_id":"","status":"running","path":"","version":1,"playbook":"",'
    b'"started_at":17,"last_at":17,"steps":{"":{"runs":1,"entered_at":17}},"activations":{"":{'
    b'"id":"","step":"","run":1,"cause":"next:","phase":"call","entered_at":17,"pool":"cpu"}},'
    b'"running":{"":1},"commands":{"":{"id":"","activation":"","step":"","kind":"run"}},'
    b'"activated":1,"issued":1,"events":4,"outcome":"last_step":"{"command_id":"",'
    b'"execution_id":"","playbook":"","step":"","activation":"","scope":{"results":{"":{'
    b'"status":"ok","reference":{"ref_id":"","type":"kv","uri":"noetl://execution/","sha256":"",'
    b'"bytes":,"format":"json"},"context":{"py":{"exit_code":0},"":}}},"path":"","version":1,'
    b'"status":"running"}}"status":"completed","result":{"status":"ok","reference":{"ref_id":"",'
    b'"type":"kv","uri":"noetl://execution//result/-1-task_0","sha256":"'
)


def compress_json(data: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zdict=DICTIONARY)
    return compressor.compress(data) + compressor.flush()


def decompress_json(stored: bytes) -> bytes:
    """Raises ValueError if the stream is damaged."""
    if not stored.startswith(_ZLIB_FIRST_BYTE):
        return stored
    decompressor = zlib.decompressobj(zdict=DICTIONARY)
    try:
        data = decompressor.decompress(stored)
    except zlib.error as error:
        raise ValueError(f"stored JSON is damaged: {error}") from error
    if not decompressor.eof:
        raise ValueError("stored JSON is damaged: its end is missing")
    return data
