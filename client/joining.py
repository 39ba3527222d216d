"""The JoinGroup request of a member, subscription bytes included. Pure."""

import struct
from collections.abc import Callable
from typing import Final

from client.actions import MembershipConfig, Resolve
from client.types import Assignment
from protocol import consumer
from protocol.messages import JoinGroupRequest, JoinProtocol
from protocol.types import NO_GENERATION, TopicPartition

PROTOCOL_TYPE: Final = "consumer"
REASON_CHARS_MAX: Final = 255

# What an assignor wants its leader to know: (assignor's name, topics, partitions of the last
# assignment, its generation) to bytes.
UserData = Callable[[str, tuple[str, ...], tuple[TopicPartition, ...], int], bytes | None]


def no_user_data(
    _name: str, _topics: tuple[str, ...], _owned: tuple[TopicPartition, ...], _generation: int
) -> bytes | None:
    """Return nothing, as the simple assignors do."""
    return None


class Joining:
    """What goes into a member's JoinGroup requests.

    Attributes:
        topics: What to read: as the caller said, or what matched its pattern at last.
        reason: Why it joins, for the coordinator's history; None once it has.

    """

    def __init__(self, config: MembershipConfig, user_data: UserData) -> None:
        """Take the caller's wishes and its assignors' code, which may raise anything."""
        self.topics = config.topics
        self.reason = config.reason
        self._config = config
        self._user_data = user_data
        self._asked_rejoins = 0
        self._resolve: Resolve | None = None
        self._resolves = 0

    def ask_rejoin(self, reason: str, topics: tuple[str, ...] | None = None) -> None:
        """Make the next request one that the group can't answer without a rebalance.

        With *topics* it subscribes to these and no others.
        """
        if topics is not None:
            self.topics = topics
        self._asked_rejoins += 1
        self.reason = reason[:REASON_CHARS_MAX]

    def resolve(self, rejoins: int) -> Resolve | None:
        """Return what must be asked first, None where the caller named the topics."""
        pattern = self._config.topic_pattern
        if pattern is not None:
            self._resolves += 1
            self._resolve = Resolve(self._resolves, pattern, rejoins)
        return self._resolve

    def is_answered(self, number: int) -> bool:
        """Say whether an answer belongs to the last `resolve`, which it ends."""
        if self._resolve is None or self._resolve.number != number:
            return False
        self._resolve = None
        return True

    def request(
        self, member_id: str, kept: tuple[TopicPartition, ...], last: Assignment | None
    ) -> JoinGroupRequest:
        """Return a JoinGroup that claims *kept*, which is left of the assignment *last*.

        An assignor hears of all of *last*, so that it can give the same again.
        """
        config = self._config
        generation = NO_GENERATION if last is None else last.generation
        before = () if last is None else last.partitions
        # An unchanged follower's JoinGroup is answered without a rebalance; one whose
        # subscription bytes changed is not. So the count of rejoins asked for stands behind
        # them: every reader of the format ignores what follows the fields that it knows.
        tail = struct.pack(">i", self._asked_rejoins) if self._asked_rejoins else b""
        protocols = []
        for name in config.assignor_names:
            subscription = consumer.Subscription(
                self.topics,
                self._user_data(name, self.topics, before, generation),
                kept,
                generation if kept else NO_GENERATION,
                config.host,
            )
            protocols.append(JoinProtocol(name, consumer.encode_subscription(subscription) + tail))
        return JoinGroupRequest(
            config.group_id,
            config.session_timeout_ms,
            config.rebalance_timeout_ms,
            member_id,
            config.group_instance_id,
            PROTOCOL_TYPE,
            tuple(protocols),
            self.reason,
            config.topic_pattern,
        )
