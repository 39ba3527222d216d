"""What consumers of old keep in ZooKeeper, in the layout of Kafka 0.8.

Needs ``pip install group-coordinator[zookeeper]``; importing this package does not. `join` is for
who reads beside such consumers, as one of them; `client.zookeeper.forms` has it for ordinary
threads, and for asyncio.
"""

from client.zookeeper.consumer import Consumer, join
from client.zookeeper.membership import Assignment
from client.zookeeper.settings import ZooKeeper

__all__ = ["Assignment", "Consumer", "ZooKeeper", "join"]
