"""Port: stored playbooks, by path, version and content hash."""
