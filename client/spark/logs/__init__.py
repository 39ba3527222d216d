"""Partitioned logs that the coordinated source reads, and the seam for a log of your own."""
