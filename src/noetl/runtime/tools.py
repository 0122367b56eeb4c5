"""The pools, the extra tools and the limits of workers: Spark is not part of the worker itself."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from noetl.model.commands import USUAL_POOLS
from noetl.settings import DuckdbSettings, StepLimitSettings, read_settings
from noetl.tools.duckdb.folders import list_allowed_folders
from noetl.tools.port import Tool
from noetl.tools.processes.limits import StepLimits, make_step_limits
from noetl.tools.processes.messages import ProcessLimits
from noetl.tools.registry import ToolFactory


def add_usual_pools(pools: tuple[str, ...]) -> tuple[str, ...]:
    """The given pools and the usual ones, for a single worker: no step may wait for another worker."""
    return tuple(dict.fromkeys((*pools, *USUAL_POOLS)))


def read_step_limits() -> StepLimits:
    """The limits of the processes of steps, as the settings of this process bound them."""
    settings = read_settings(StepLimitSettings)
    highest = ProcessLimits(
        memory=settings.max_memory_bytes,
        cpu_seconds=settings.max_cpu_sec,
        processes=settings.max_processes,
        file_size=settings.max_file_bytes,
        open_files=settings.max_open_files,
    )
    return make_step_limits(highest)


def read_duckdb_folders(home: Path) -> tuple[str, ...]:
    """The folders whose files SQL of DuckDB steps may use."""
    named = read_settings(DuckdbSettings).folders
    return list_allowed_folders(named, home, Path.cwd())


def make_extra_tools(home: Path) -> Mapping[str, ToolFactory]:
    return {"spark": lambda: _make_spark_tool(home)}


def _make_spark_tool(home: Path) -> Tool:
    """The Spark tool. Its modules are loaded when the first step needs them."""
    spark_tool: Any = import_module("noetl.runtime.spark_tool")
    tool: Tool = spark_tool.make_spark_tool(home)
    return tool
