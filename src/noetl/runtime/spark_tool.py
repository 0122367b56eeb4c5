"""Makes the tool of `kind: spark` for a worker."""

from pathlib import Path

from noetl.settings import SparkSettings, read_settings
from noetl.spark.server.process import SparkServerSettings
from noetl.spark.step.tool import SparkTool, SparkToolSettings


def make_spark_tool(home: Path) -> SparkTool:
    spark = read_settings(SparkSettings)
    serving = SparkServerSettings(spark.idle_sec, spark.java_options)
    return SparkTool(SparkToolSettings(home, spark.profile, serving, spark.copy_bytes))
