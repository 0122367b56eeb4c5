"""NoETL."""
