"""Which shards have removed their offsets of which deleted topics."""

from collections.abc import Iterable


class Purges:
    """A deleted topic is forgotten once every shard is done with it, loaded anew or not."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._done_in: dict[str, set[int]] = {}

    def begin(self, topics: Iterable[str]) -> None:
        """Take note of deleted *topics*."""
        for topic in topics:
            self._done_in.setdefault(topic, set())

    def left_for(self, partition: int) -> list[str]:
        """Return the topics that the shard of *partition* still has to remove."""
        return [topic for topic, done in self._done_in.items() if partition not in done]

    def done(self, partition: int, topics: Iterable[str]) -> list[str]:
        """Take note that a shard is done with *topics*; return those that all are done with."""
        over = []
        for topic in topics:
            done_in = self._done_in[topic]
            done_in.add(partition)
            if len(done_in) == self._shards:
                del self._done_in[topic]
                over.append(topic)
        return over
