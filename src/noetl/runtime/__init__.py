"""Wires the processes of NoETL: a server, a worker, both in the process of a user, both in memory.

Nothing else creates stores, servers and workers from settings. It runs in every process that the
command or a client starts. `noetl.client`, `noetl.cli`, tests and benchmarks import it.
"""

from typing import Literal

LocalNeed = Literal["read", "change", "run"]  # what a caller is going to do on this machine
