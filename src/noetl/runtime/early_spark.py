"""Starts Spark for a playbook while its execution is prepared."""

from noetl.runtime.kinds import load_playbook
from noetl.runtime.spark_server import start_spark


def start_spark_for(text: str, file: str) -> None:
    """Start the Spark server of this machine for a playbook. Raises if the playbook is not valid."""
    load_playbook(text, file)
    start_spark()
