"""Port: state between executions. `port` is the contract, `memory` the twin, `postgres` the durable adapter."""
