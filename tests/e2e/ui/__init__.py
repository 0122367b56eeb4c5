"""The page in a real browser, on a real server, worker and database."""
