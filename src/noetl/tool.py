"""For authors of tools: all that a tool of your own imports. docs/tools.md shows how to write one.

A package brings its tool by the entry point `noetl.tools`. These names stay where they are; the
modules behind them may move.
"""

from noetl.model.errors import Failure
from noetl.tools.port import (
    Call,
    CallIdentity,
    Columnar,
    Failed,
    Log,
    ManyTool,
    Outcome,
    OutcomeListener,
    PlaybookKey,
    Progress,
    Rendering,
    Rows,
    Success,
    Suspend,
    Tool,
)

__all__ = [
    "Call",
    "CallIdentity",
    "Columnar",
    "Failed",
    "Failure",
    "Log",
    "ManyTool",
    "Outcome",
    "OutcomeListener",
    "PlaybookKey",
    "Progress",
    "Rendering",
    "Rows",
    "Success",
    "Suspend",
    "Tool",
]
