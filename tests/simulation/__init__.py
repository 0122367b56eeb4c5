"""The deterministic simulator: the real server, worker and engine on memory twins, under a virtual clock and a seeded scheduler.

`python -m tests.simulation --seeds 2000` runs it. A seed is a whole history: the playbooks, the faults, every delay and every
choice of the scheduler follow from it, so a failing seed is a repeatable bug. May import anything of ours; nothing imports it.
"""
