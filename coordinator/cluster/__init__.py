"""Several nodes over one log, which ZooKeeper keeps: who leads what, and what is in the log.

Pure, as `coordinator.group` is: no I/O, no clock, no randomness. docs/architecture.md says where
it stands.
"""
