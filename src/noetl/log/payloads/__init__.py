"""Port: small payloads. `port` is the contract, `memory` the twin, `postgres` the durable adapter."""
