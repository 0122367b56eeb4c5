"""Compiles the package where it is installed in place: some environments keep Python from doing so later."""

import compileall
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Compile(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            compileall.compile_dir(Path(self.root) / "src" / "noetl", quiet=1)
