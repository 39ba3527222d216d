"""The offsets log: a journal of batches on disk. Knows no groups and no wire protocol."""
