"""What workers that this command starts are given: tools that stand beside the worker, and pools."""

from collections.abc import Mapping
from pathlib import Path

from noetl.model.commands import USUAL_POOLS
from noetl.tools.port import Tool
from noetl.tools.registry import Make


def usual(pools: tuple[str, ...]) -> tuple[str, ...]:
    """For the one worker there is: no step shall wait for another."""
    return tuple(dict.fromkeys((*pools, *USUAL_POOLS)))


def tools(home: Path) -> Mapping[str, Make]:
    return {"spark": lambda: _spark(home)}


def _spark(home: Path) -> Tool:
    """Made, and its libraries loaded, when a step asks for it."""
    from noetl.settings import SparkSettings as Settings
    from noetl.settings import read
    from noetl.spark import tool
    from noetl.spark.serve import Serving

    found = read(Settings)
    serving = Serving(found.idle_sec, found.java_options)
    return tool.SparkTool(tool.Settings(home, found.profile, serving, found.copy_bytes))


def begin_spark() -> bool:
    """The server of this machine, which answers then; False where the profile names one of others."""
    from noetl.settings import HomeSettings, SparkSettings, read
    from noetl.spark.profiles import profile
    from noetl.spark.serve import Serving
    from noetl.spark.starting import ensure

    spark = read(SparkSettings)
    wanted = profile(spark.profile)
    ensure(read(HomeSettings).where, wanted, Serving(spark.idle_sec, spark.java_options))
    return wanted.url is None
