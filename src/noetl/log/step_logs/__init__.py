"""Port: lines that steps printed. `port` is the contract, `memory` the twin, `postgres` the durable adapter."""
