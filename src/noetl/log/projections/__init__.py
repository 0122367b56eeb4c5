"""Port: the rows of executions that people read. `port` is the contract, `memory` the twin, `postgres` the durable adapter."""
