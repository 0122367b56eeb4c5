"""`now()`, `uuid()` and `random()`: functions that depend on more than their arguments.

A replay repeats their values, because they are derived from a seed and the number of the call.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

from msgspec import Struct

from noetl.template.errors import FailedError
from noetl.template.limits import Meter


class Functions(Protocol):
    """Functions that depend on more than their arguments.

    `nth` counts the calls within one rendering, so that a repeated evaluation gets the same values.
    """

    def now(self) -> str: ...
    def uuid(self, nth: int) -> str: ...
    def random(self, nth: int) -> float: ...


class DerivedFunctions(Struct, frozen=True):
    """Functions derived from a seed: the handled event and the template's place.

    Replay repeats them.
    """

    seed: str
    at: str

    def _compute_digest(self, name: str, nth: int) -> bytes:
        return hashlib.sha256(f"{self.seed}\0{name}\0{nth}".encode()).digest()

    def now(self) -> str:
        return self.at

    def uuid(self, nth: int) -> str:
        digits = self._compute_digest("uuid", nth).hex()[:32]
        variant = "89ab"[int(digits[16], 16) % 4]  # of RFC 9562; the 4 below is the version
        return (
            f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
        )

    def random(self, nth: int) -> float:
        digest = self._compute_digest("random", nth)
        bits = int.from_bytes(digest[:8]) >> 11  # 53 bits, as many as a float has
        return bits / 2.0**53

    def derive_functions(self, place: str) -> DerivedFunctions:
        return DerivedFunctions(f"{self.seed}\0{place}", self.at)


class CallMeter(Meter):
    """A meter that also has the `Functions` of one rendering and numbers the calls of them."""

    __slots__ = ("call_count", "functions")

    functions: Functions | None
    call_count: int

    def require_functions(self, name: str) -> Functions:
        if self.functions is None:
            raise FailedError(f"{name}() is not available here")
        return self.functions

    def next_call_number(self) -> int:
        self.call_count += 1
        return self.call_count - 1
