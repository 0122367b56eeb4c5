"""Port: where results come from. `port` is the contract, `memory` the twin, `postgres` the durable adapter."""
