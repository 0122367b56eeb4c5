"""Port: folds of executions as of some of their events. `port` is the contract, `memory` the twin, `postgres` the real one."""
