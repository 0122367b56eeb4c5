"""Port: workers that were seen recently. `port` is the contract, `memory` the twin, `postgres` the durable adapter."""
