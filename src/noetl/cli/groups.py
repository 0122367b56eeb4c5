"""The group of all commands. It says in plain words which value of an option does not fit."""

from typing import Any

import typer
from typer.core import TyperGroup


class RootGroup(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            problem = _describe_number(error)
            if problem is not None:
                error.message = problem
            raise


def _describe_number(error: typer.BadParameter) -> str | None:
    """What is wrong with a number; None if another library than Typer's own found it."""
    find_errors = getattr(error.__cause__, "errors", None)
    if find_errors is None:
        return None
    (detail,) = find_errors()
    given = detail["input"]
    least, most = getattr(error.param, "min", None), getattr(error.param, "max", None)
    if least is None:
        return f"{given!r} is not a whole number"
    if most is None:
        return f"{given!r} is not a whole number, at least {least}"
    return f"{given!r} is not a whole number from {least} to {most}"
