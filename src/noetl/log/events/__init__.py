"""Port: the event log. `port` is the contract, `memory` the twin, `postgres` the durable adapter."""
