"""Seeing inside an execution: its state at any event, its timeline, its events, why its steps ran.

`folds` reads and caches the folds of executions; the other modules make views of them. `service` and
`routes` are as in other subjects.
"""
