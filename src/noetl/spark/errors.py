"""What is raised on the way to a failure. `failures.py` says it to people; this needs no Spark."""

from typing import Any


class Broken(Exception):
    """Something went wrong at a place that can be named."""

    def __init__(self, where: str, error: BaseException) -> None:
        super().__init__(where)
        self.where = where
        self.error = error


class Unmet(Exception):
    """Rows that do not meet what the step expects; `sample` are some of them."""

    def __init__(self, message: str, sample: list[dict[str, Any]]) -> None:
        super().__init__(message)
        self.sample = sample


class Wrong(Exception):
    """The step asks for something that cannot be."""


class Uncertain(Exception):
    """Rows were being added when something failed, so nobody knows how many of them are there."""


class NotJson(Exception):
    """The code gives a value that JSON does not have."""


class ValueTooLarge(Exception):
    """A value that is not for one message."""
