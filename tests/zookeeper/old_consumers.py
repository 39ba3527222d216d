"""A consumer of old as a model, from Kafka 0.8's documents ("Consumers and Consumer Groups").

It gives up all that it has before each rebalance, claims all or nothing, tries a few times with a
pause, and then rests until the next change. With a new session it begins anew.
"""

from collections.abc import Generator
from typing import Final

from client.zookeeper.membership import (
    Answer,
    Claim,
    ListMembers,
    ListTopics,
    ReadMember,
    ReadTopic,
    Register,
    Release,
    Request,
    Result,
)
from client.zookeeper.registrations import (
    Subscription,
    decode_partitions,
    decode_registration,
    encode_registration,
    share_of,
)
from protocol.partition import TopicPartition

# 0.8's defaults: `rebalance.max.retries`, `rebalance.backoff.ms`.
TRIES: Final = 4
PAUSE_MS: Final = 2_000

# What the model does next: ask something, or pause for so many milliseconds.
Doing = Generator[Request | int, Answer, bool]


class OldConsumer:
    """What one does, as coroutines over whatever carries its requests.

    Attributes:
        has: What it reads, and commits the offsets of.
        gave_up: How often all of its tries were in vain.

    """

    def __init__(self, consumer_id: str, subscription: Subscription) -> None:
        self.consumer_id = consumer_id
        self.subscription = subscription
        self.has: dict[TopicPartition, str] = {}
        self.gave_up = 0

    def begin(self) -> Doing:
        """Register in a new session, and rebalance."""
        self.has.clear()
        yield Register(encode_registration(self.subscription, 0))
        return (yield from self.rebalance())

    def rebalance(self) -> Doing:
        """Rebalance, as at each change; return whether it came to its end."""
        for _ in range(TRIES):
            if (yield from self._try()):
                return True
            yield PAUSE_MS
        self.gave_up += 1
        return False

    def _try(self) -> Doing:
        had, self.has = self.has, {}
        for tp in had:
            yield Release(tp)
        share = yield from self._share()
        if share is None:
            return False
        made: list[TopicPartition] = []
        for tp, thread in share.items():
            if (yield Claim(tp, thread)).result is Result.DONE:
                made.append(tp)
        if len(made) < len(share):
            for tp in made:
                yield Release(tp)
            return False
        self.has = share
        return True

    def _share(self) -> Generator[Request, Answer, dict[TopicPartition, str] | None]:
        """Return its share; None if somebody left while it read who is there."""
        members = {}
        for name in (yield ListMembers()).names:
            answer = yield ReadMember(name)
            if answer.result is Result.MISSING:
                return None
            members[name] = decode_registration(answer.data)
        if self.consumer_id not in members:
            return None
        topics = (yield ListTopics()).names
        partitions = {}
        for topic in members[self.consumer_id].threads_by_topic(topics):
            answer = yield ReadTopic(topic)
            if answer.result is Result.DONE:
                partitions[topic] = decode_partitions(answer.data)
        return share_of(self.consumer_id, members, topics, partitions)
