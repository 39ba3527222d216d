"""What consumers of old keep in ZooKeeper, in the layout of Kafka 0.8.

Needs ``pip install group-coordinator[zookeeper]``; importing this package does not. `forms` has
what a program needs that reads beside such consumers, `consumer` the same for trio.
"""
