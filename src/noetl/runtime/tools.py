"""The pools and the extra tools of workers: Spark is not part of the worker itself."""

from collections.abc import Mapping
from pathlib import Path

from noetl.model.commands import USUAL_POOLS
from noetl.runtime.kinds import load_playbook
from noetl.settings import HomeSettings, SparkSettings, read_settings
from noetl.spark.profiles import parse_profile
from noetl.spark.server.process import SparkServerSettings
from noetl.spark.server.server_start import ensure_spark_server
from noetl.tools.port import Tool
from noetl.tools.registry import ToolFactory


def add_usual_pools(pools: tuple[str, ...]) -> tuple[str, ...]:
    """The given pools and the usual ones, for a single worker: no step may wait for another worker."""
    return tuple(dict.fromkeys((*pools, *USUAL_POOLS)))


def make_extra_tools(home: Path) -> Mapping[str, ToolFactory]:
    return {"spark": lambda: _make_spark_tool(home)}


def _make_spark_tool(home: Path) -> Tool:
    """The Spark tool."""
    # Its libraries are loaded when the first step needs them.
    from noetl.spark.step import tool

    spark = read_settings(SparkSettings)
    serving = SparkServerSettings(spark.idle_sec, spark.java_options)
    return tool.SparkTool(tool.SparkToolSettings(home, spark.profile, serving, spark.copy_bytes))


def start_spark_for(text: str, file: str) -> None:
    """Start the Spark server of this machine for a playbook. Raises if the playbook is not valid."""
    load_playbook(text, file)
    start_spark()


def start_spark() -> bool:
    """Start the Spark server of this machine and wait until it answers.

    False if the profile names another server: then nothing is started.
    """
    spark = read_settings(SparkSettings)
    chosen_profile = parse_profile(spark.profile)
    ensure_spark_server(
        read_settings(HomeSettings).home_path,
        chosen_profile,
        SparkServerSettings(spark.idle_sec, spark.java_options),
    )
    return chosen_profile.url is None
