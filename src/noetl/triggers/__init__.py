"""Ports: schedules and hooks, which start executions at a time or on a call from outside.

`calendar` and `turns` are pure: they compute the times of a rule, and what happens at one of them.
Everything runs in the server, which imports this package; it imports `model`, `database` and `sql`.
"""
