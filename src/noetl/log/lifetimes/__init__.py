"""Port: how long results stay. `port` is the contract, `memory` the twin, `postgres` the durable adapter."""
