"""What a test asks the process that has loaded `noetl` for."""

from typing import NamedTuple


class ForkRequest(NamedTuple):
    """A program to run: `module` as `python -m` runs it."""

    module: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]
