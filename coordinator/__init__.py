"""The coordinator daemon: groups, offsets and the log that keeps them."""
