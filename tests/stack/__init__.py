"""Servers and workers as processes, for tests: the command of a home, its processes, and a stack of them.

`NoetlCommand` runs `noetl` in a home. Processes are forks of one that has loaded its modules
(`loaded_process.py`), because loading is most of what a short command does. `run_stack` starts a
server and workers over a home, waits until the server is ready, and stops them in order. A test
that fails shows their logs.
"""

from tests.stack.command import ROOT, CommandOutput, NoetlCommand, write_playbook
from tests.stack.homes import inspect_home, temporary_home
from tests.stack.processes import NoetlProcess
from tests.stack.stack import Stack, open_stacks, run_stack, wait_until_ready

__all__ = [
    "ROOT",
    "CommandOutput",
    "NoetlCommand",
    "NoetlProcess",
    "Stack",
    "inspect_home",
    "open_stacks",
    "run_stack",
    "temporary_home",
    "wait_until_ready",
    "write_playbook",
]
