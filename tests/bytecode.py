"""Compiled files for the processes that tests start, also where Python must not write them beside the sources.

The suite starts hundreds of servers, workers and commands. With PYTHONDONTWRITEBYTECODE each of them
would compile every module that it imports.
"""

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".pytest_cache" / "bytecode"


def keep_bytecode() -> None:
    """Keep compiled files in the folder of pytest's cache if Python must not write them elsewhere."""
    if not sys.dont_write_bytecode:
        return
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(FOLDER)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(FOLDER)
