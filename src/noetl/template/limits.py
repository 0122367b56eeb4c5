"""Limits of a rendering, and the meter that counts its work against them.

Work is counted before it is done, in proportion to the sizes of its operands. So the same template
over the same scope succeeds or fails alike on every machine and in every replay.

One operation is half a microsecond of work at most, as measured by `tests/unit/template/
test_resources.py`. Work inside one call of C holds the interpreter, so that nothing else runs
meanwhile: `spend_native` bounds each such call.
"""

from msgspec import Struct

from noetl.template.errors import LimitError

MAX_NATIVE_OPERATIONS = 200_000  # operations that one call of C may take: less than 0.1 s
MEBIBYTE = 1024 * 1024
_BYTES_PER_WIDE_CHARACTER = 4
_BYTES_PER_REFERENCE = 8


class RenderLimits(Struct, frozen=True):
    operations: int  # nodes evaluated + items visited + pieces of text read or made
    text: int  # characters of one text
    items: int  # items of one list
    depth: int = 100  # nesting of a value
    # Bits of an integer that a template computes: JSON and Arrow carry 64 everywhere.
    bits: int = 64
    memory: int = 4 * MEBIBYTE  # bytes of all texts and lists that are made
    source: int = 1_000_000  # characters of one template
    # Parts of a list or map that are looked at in one operation, as a power of two. Servers count
    # each part: which collections they leave to a worker must stay the same in every replay.
    parts_shift: int = 0


SERVER_LIMITS = RenderLimits(operations=100_000, text=64 * 1024, items=100_000)
WORKER_LIMITS = RenderLimits(
    operations=2_000_000, text=16 * MEBIBYTE, items=2_000_000, memory=64 * MEBIBYTE, parts_shift=2
)
# What a worker renders on its event loop. It renders anything larger in a thread, with the limits
# of a worker, so that heartbeats, timeouts and signals never wait for a template.
EVENT_LOOP_LIMITS = RenderLimits(
    operations=5_000, text=MEBIBYTE, items=100_000, memory=4 * MEBIBYTE, source=4_096, parts_shift=2
)


class Meter:
    """Counts down the budget of a rendering. Every function reports work here before it does it."""

    __slots__ = ("limits", "memory", "operations")

    def __init__(self, limits: RenderLimits) -> None:
        self.limits = limits
        self.operations = limits.operations
        self.memory = limits.memory

    def spend_operations(self, count: int) -> None:
        self.operations -= count
        if self.operations < 0:
            raise LimitError(f"the template takes more than {self.limits.operations} operations")

    def spend_native(self, count: int) -> None:
        """Count the work of one call of C."""
        if count > MAX_NATIVE_OPERATIONS:
            raise LimitError(
                f"one operation of the template takes more than {MAX_NATIVE_OPERATIONS} operations"
            )
        self.spend_operations(count)

    def spend_memory(self, size: int) -> None:
        self.memory -= size
        if self.memory < 0:
            raise LimitError(f"the template makes more than {self.limits.memory} bytes of data")

    def spend_reading(self, size: int) -> None:
        """Count the reading of so many characters."""
        self.spend_native(1 + (size >> 7))

    def spend_text(self, size: int, is_ascii: bool = True) -> None:
        """Count the making of a text of so many characters."""
        if size > self.limits.text:
            raise LimitError(f"the template makes more than {self.limits.text} characters of text")
        self.memory -= size if is_ascii else size * _BYTES_PER_WIDE_CHARACTER
        if self.memory < 0:
            raise LimitError(f"the template makes more than {self.limits.memory} bytes of data")
        if size > 127:
            self.spend_native(size >> 7)

    def spend_case_change(self, value: str, is_quick: bool = False) -> None:
        """Count the changing of every character. One character may become three.

        Python has a quick way for ASCII in `upper` and `lower` only.
        """
        if is_quick and value.isascii():
            self.spend_text(len(value))
            return
        self.spend_text(3 * len(value), is_ascii=False)
        self.spend_native(1 + (len(value) >> 3))

    def spend_items(self, count: int, item_bytes: int = _BYTES_PER_REFERENCE) -> None:
        """Count the making of a list by one call of C."""
        if count > self.limits.items:
            raise LimitError(
                f"the template makes a list of {count} items, more than {self.limits.items}"
            )
        self.spend_memory(count * item_bytes)
        self.spend_native(1 + (count >> 3))
