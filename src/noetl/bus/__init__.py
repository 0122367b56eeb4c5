"""Port: hints. Whatever is lost, doubled or reordered here changes latency and nothing else."""
