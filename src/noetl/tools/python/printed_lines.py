"""What a call prints: one stream of bytes is split into lines for the log of the call."""

from noetl.tools.port import Log

MAX_STREAM_BYTES = 1024 * 1024  # bytes of one stream
MAX_LINE_BYTES = 64 * 1024


class StreamLines:
    """Splits one stream of one call into lines for its log.

    It cuts long lines, and only counts the bytes beyond the limit of a stream.
    """

    def __init__(self, name: str, log: Log) -> None:
        self._name = name
        self._log = log
        self._line = bytearray()
        self._cut_byte_count = 0
        self._stream_bytes_left = MAX_STREAM_BYTES
        self._dropped_bytes = 0

    def add(self, data: bytes) -> None:
        if self._stream_bytes_left <= 0:
            self._dropped_bytes += len(data)
            return
        first, *others = data.split(b"\n")
        self._extend(first)
        for line in others:
            self._end_line()
            self._extend(line)

    def end(self) -> None:
        if self._line:
            self._end_line()
        if self._dropped_bytes:
            self._log(self._name, f"({self._dropped_bytes} bytes more were not kept)")
            self._dropped_bytes = 0

    def _extend(self, data: bytes) -> None:
        room = MAX_LINE_BYTES - len(self._line)
        self._line += data[:room]
        self._cut_byte_count += len(data[room:])

    def _end_line(self) -> None:
        size = len(self._line) + self._cut_byte_count + 1
        if self._stream_bytes_left <= 0:
            self._dropped_bytes += size
        else:
            self._log(self._name, self._line.decode("utf-8", "replace"))
            if self._cut_byte_count:
                self._log(self._name, f"({self._cut_byte_count} bytes of this line left out)")
        self._stream_bytes_left -= size
        self._line.clear()
        self._cut_byte_count = 0
