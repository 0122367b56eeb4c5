"""Closes the memory and the environment of a process to other processes of its user."""

import ctypes
import sys

PR_SET_DUMPABLE = 4  # linux/prctl.h


def close_process_memory() -> None:
    """Forbid other processes of this user to read this process: its memory, environment and files.

    They could otherwise, through `/proc/PID` or as a debugger, and steps may run as the same user. The
    process also writes no core file. Programs that it executes are not closed. Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
