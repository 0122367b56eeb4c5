"""Runs commands: renders inputs where the data is, runs a step's tasks with their policies, persists, journals, reports.

It knows neither server nor log: journal entries leave through a callback that returns once they are acknowledged. May import
`tools`, `playbook`, `results` (the port) and `model`; is used by `worker` and by loops on Spark. `execute` is the one door.
"""

from noetl.pipeline.environment import Environment, Journaling, OutgoingEvent
from noetl.pipeline.execute import execute

__all__ = ["Environment", "Journaling", "OutgoingEvent", "execute"]
