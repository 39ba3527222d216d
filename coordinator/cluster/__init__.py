"""Several nodes over one log, which ZooKeeper keeps: the leaders of journals, and the log itself.

Pure, as `coordinator.group` is: no I/O, no clock, no randomness. docs/architecture.md shows its
place.
"""
