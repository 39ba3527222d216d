"""A consumer among Kafka 0.8's, which share out their topics in ZooKeeper: until the last is gone.

python beside_old_consumers.py zk1:2181,zk2:2181/kafka GROUP TOPIC
"""

import signal
import sys
from contextlib import suppress

from client import CoordinatorUnavailable, OutcomeUnknown, Rebalanced
from client.zookeeper.forms import join_blocking

zookeeper, group, topic = sys.argv[1:]
signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C: the group is left.
with suppress(KeyboardInterrupt), join_blocking(zookeeper, group, [topic]) as consumer:
    while True:
        assignment = consumer.assignment()  # Hands over what others wait for.
        try:
            positions = consumer.fetch(assignment.partitions)
            for tp in assignment.partitions:
                start = positions.get(tp, 0)
                print(f"{tp} from {start} to {start + 9}", flush=True)
                positions[tp] = start + 10  # The next offset to read.
            consumer.commit(positions)
        except Rebalanced:
            print("somebody else has these partitions by now; nothing was stored")
        except OutcomeUnknown as error:  # Also after this process was frozen.
            print(f"{error}; the next fetch says what is stored")
        except CoordinatorUnavailable as error:
            print(f"{error}; nothing was stored")
        with suppress(TimeoutError):
            consumer.wait_rebalance_needed(timeout_s=1)
print("left the group")
