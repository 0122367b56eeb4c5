"""Port: the inbox, with the timers. `port` is the contract, `memory` the twin, `postgres` the durable adapter."""
