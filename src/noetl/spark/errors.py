"""Exceptions of the process that runs a Spark command; `failures.py` turns them into failures.

This module does not import Spark.
"""

from typing import Any


class LocatedError(Exception):
    """An error with the part of the step that it belongs to, for example `input orders`."""

    def __init__(self, where: str, error: BaseException) -> None:
        super().__init__(where)
        self.where = where
        self.error = error


class CheckFailed(Exception):
    """Rows fail a check of `expect`. `sample` holds some of these rows."""

    def __init__(self, message: str, sample: list[dict[str, Any]]) -> None:
        super().__init__(message)
        self.sample = sample


class ImpossibleRequest(Exception):
    """The step is configured for something impossible."""


class OutputUncertain(Exception):
    """Adding rows failed halfway, so the number of rows at the target is unknown."""


class ResultNotJson(Exception):
    """The code returns a value that JSON cannot represent."""


class ValueTooLarge(Exception):
    """The code returns a value that is too large for one message."""
