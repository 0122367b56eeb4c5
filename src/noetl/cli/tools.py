"""Tools that stand beside the worker, for workers that this command starts."""

from collections.abc import Mapping
from pathlib import Path

from noetl.tools.port import Tool
from noetl.tools.registry import Make


def tools(home: Path) -> Mapping[str, Make]:
    return {"spark": lambda: _spark(home)}


def _spark(home: Path) -> Tool:
    """Made, and its libraries loaded, when a step asks for it."""
    from noetl.settings import Spark as Settings
    from noetl.settings import read
    from noetl.spark import tool
    from noetl.spark.serve import Serving

    found = read(Settings)
    return tool.Spark(tool.Settings(home, found.profile, Serving(found.idle_sec, found.java_options)))
