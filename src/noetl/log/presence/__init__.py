"""Port: workers that were seen lately. `port` is the contract, `memory` the twin, `postgres` the durable adapter."""
