"""Membership and offsets in ZooKeeper, in the layout of Kafka 0.8's consumers.

Needs ``pip install group-coordinator[zookeeper]``; importing this package does not. A program that
shares a group with consumers of Kafka 0.8 uses `forms` (threads, asyncio) or `consumer` (trio).
"""
