"""Everything that a template can call: filters, tests, methods and global functions.

Each is a pure function of a meter and plain values. It reports to the meter what it will make or
read before it does so, and refuses values that it does not apply to. The names of the parameters
are part of the language, because templates pass arguments by keyword.

`default`, `defined` and `undefined` accept an undefined subject, so `template/expressions.py`
evaluates them. They are listed here so that this package has all names.
"""
