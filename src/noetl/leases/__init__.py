"""Port: which servers run, and which of them owns which shard.

Time decides when to try a takeover; the epoch decides who may write.
It runs in servers; `server` and `cli` may import it.
"""
