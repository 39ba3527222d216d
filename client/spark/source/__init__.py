"""The format ``coordinated``: drivers of a group share the partitions of a source."""
