"""Port: who runs and who owns which shard. Time decides when to try a takeover; the epoch decides who may write."""
