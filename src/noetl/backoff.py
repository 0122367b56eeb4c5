"""Delays that grow with every failure in a row. Pure: the caller waits, and draws the random numbers."""

from dataclasses import dataclass

MAX_EXPONENT = 64
MAX_GROWTH = 1e9  # times the first delay


@dataclass(slots=True)
class Backoff:
    """The delay before the next try: `first`, then `factor` times the one before, at most `longest`.

    `longest` does not shorten the first delay, which may be the usual interval of a loop.
    """

    first: float
    longest: float
    factor: float = 2.0
    failures: int = 0  # in a row

    @property
    def delay(self) -> float:
        if self.failures == 0:
            return self.first
        return compute_delay(self.first, self.longest, self.failures, self.factor)

    def count_failure(self) -> None:
        self.failures += 1

    def reset(self) -> None:
        """Begin with the first delay again, after a success."""
        self.failures = 0


def compute_delay(
    first: float,
    longest: float,
    failures: int,
    factor: float = 2.0,
) -> float:
    """The delay after `failures` earlier ones: `factor` times the one before, at most `longest`."""
    growth = min(factor ** min(failures, MAX_EXPONENT), MAX_GROWTH)
    return min(first * growth, longest)


def spread_delay(delay: float, share: float, chance: float) -> float:
    """A delay with jitter: `share` of it is multiplied by `chance`, a random number in [0, 1)."""
    return delay * (1 - share) + delay * share * chance
