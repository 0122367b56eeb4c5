"""The pools and the extra tools of workers that commands start: Spark is not part of the worker."""

from collections.abc import Mapping
from pathlib import Path

from noetl.model.commands import USUAL_POOLS
from noetl.tools.port import Tool
from noetl.tools.registry import Make


def usual(pools: tuple[str, ...]) -> tuple[str, ...]:
    """The given pools and the usual ones, for a single worker: no step may wait for another worker."""
    return tuple(dict.fromkeys((*pools, *USUAL_POOLS)))


def tools(home: Path) -> Mapping[str, Make]:
    return {"spark": lambda: _spark(home)}


def _spark(home: Path) -> Tool:
    """The Spark tool. Its libraries are loaded when the first step needs them."""
    from noetl.settings import SparkSettings, read
    from noetl.spark import tool
    from noetl.spark.serve import Serving

    spark = read(SparkSettings)
    serving = Serving(spark.idle_sec, spark.java_options)
    return tool.SparkTool(tool.Settings(home, spark.profile, serving, spark.copy_bytes))


def begin_spark() -> bool:
    """Start the Spark server of this machine and wait until it answers.

    False if the profile names another server: then nothing is started.
    """
    from noetl.settings import HomeSettings, SparkSettings, read
    from noetl.spark.profiles import profile
    from noetl.spark.serve import Serving
    from noetl.spark.starting import ensure

    spark = read(SparkSettings)
    chosen_profile = profile(spark.profile)
    ensure(read(HomeSettings).where, chosen_profile, Serving(spark.idle_sec, spark.java_options))
    return chosen_profile.url is None
