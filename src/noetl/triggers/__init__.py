"""Ports: schedules and hooks, what starts executions by the clock or by a call from outside. Which moments a rule names and what
is to be done at one (`calendar`, `turns`) are pure."""
