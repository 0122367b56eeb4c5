"""Limits of a rendering, and the meter that counts its work against them.

Work is counted before anything is allocated. So the same template over the same scope succeeds or
fails alike on every machine and in every replay.
"""

from msgspec import Struct

from noetl.template.errors import LimitError


class RenderLimits(Struct, frozen=True):
    operations: int  # nodes evaluated + items made + 64-character pieces of text read
    text: int  # characters of one text; all texts of a rendering may have four times as many
    items: int  # items of one list
    depth: int = 100  # nesting of a value
    # Bits of an integer that a template computes: JSON and Arrow carry 64 everywhere.
    bits: int = 64


SERVER_LIMITS = RenderLimits(operations=100_000, text=64 * 1024, items=100_000)
WORKER_LIMITS = RenderLimits(operations=50_000_000, text=64 * 1024 * 1024, items=10_000_000)
TEXT_BUDGET_FACTOR = 4


class Meter:
    """Counts down the budget of a rendering. Every function reports work here before it does it."""

    __slots__ = ("limits", "operations", "text")

    def __init__(self, limits: RenderLimits) -> None:
        self.limits = limits
        self.operations = limits.operations
        self.text = limits.text * TEXT_BUDGET_FACTOR

    def spend_operations(self, count: int) -> None:
        self.operations -= count
        if self.operations < 0:
            raise LimitError(f"the template takes more than {self.limits.operations} operations")

    def spend_reading(self, size: int) -> None:
        self.spend_operations(1 + (size >> 6))

    def spend_text(self, size: int) -> None:
        self.text -= size
        if size > self.limits.text or self.text < 0:
            raise LimitError(f"the template makes more than {self.limits.text} characters of text")
        self.operations -= size >> 6

    def spend_items(self, count: int) -> None:
        if count > self.limits.items:
            raise LimitError(
                f"the template makes a list of {count} items, more than {self.limits.items}"
            )
        self.spend_operations(count)
