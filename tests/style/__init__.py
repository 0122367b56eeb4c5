"""Figures of how readable the source is.

`make style` prints them. `tests/unit/test_style.py` keeps the first three from growing.
"""
