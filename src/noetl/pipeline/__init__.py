"""Runs commands: renders inputs, runs a step's tasks with their policies, stores, journals,
reports.

It runs in worker processes and in Spark's tasks, and knows neither server nor log. Journal entries
leave through a callback that returns when they are acknowledged. `worker` and `spark` may import
it, through `execute`; it imports `tools`, `playbook`, `results` (the port) and `model`.
"""

from noetl.pipeline.environment import Environment, OutgoingEvent, SendJournalEntry
from noetl.pipeline.execute import execute

__all__ = ["Environment", "OutgoingEvent", "SendJournalEntry", "execute"]
