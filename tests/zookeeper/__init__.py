"""Offsets in ZooKeeper, and consumers that register there."""
