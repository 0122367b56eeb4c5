"""Starts the Spark server of this machine."""

from noetl.settings import HomeSettings, SparkSettings, read_settings
from noetl.spark.profiles import parse_profile
from noetl.spark.server.process import SparkServerSettings
from noetl.spark.server.server_start import ensure_spark_server


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
