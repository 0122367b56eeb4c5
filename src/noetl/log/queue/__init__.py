"""Port: the queue of commands. `port` is the contract, `memory` the twin, `postgres` the durable adapter."""
