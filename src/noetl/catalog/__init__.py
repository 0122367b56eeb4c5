"""Ports: stored playbooks, by path, version and content hash; stored credentials, sealed, by name."""
