"""The offsets log: a journal of batches on disk. Independent of groups and of the wire protocol."""
