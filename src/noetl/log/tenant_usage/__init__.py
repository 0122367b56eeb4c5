"""Port: how much a tenant uses. `port` is the contract, `memory` the twin, `postgres` the durable adapter."""
