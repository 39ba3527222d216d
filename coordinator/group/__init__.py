"""The group state machine and the offsets cache: pure, no I/O, no clock, no randomness."""
