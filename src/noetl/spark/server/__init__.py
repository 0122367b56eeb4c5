"""The local Spark Connect server: its JVM, its command line, how it starts and when it stops.

Runs in a process of its own, one per machine and home; others start or find it here.
Imported by `noetl.spark` and by the command line.
"""
