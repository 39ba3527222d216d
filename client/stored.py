"""The offsets that the caller has stored: processed up to here, to be committed. Pure."""

from collections.abc import Collection, Iterable, Mapping

from client.exceptions import CommitRefused
from client.offsets import commit_request
from client.types import OffsetAndMetadata, Offsets
from protocol.errors import ERRORS, ErrorCode, Remedy
from protocol.types import NO_GENERATION, TopicPartition

Pending = dict[TopicPartition, OffsetAndMetadata]


class StoredOffsets:
    """The last word of the caller per partition. What is committed never runs ahead of it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._offsets: Pending = {}

    def store(self, offsets: Offsets) -> None:
        """Keep *offsets* until they are committed.

        Raises:
            ValueError: One of them is no offset; nothing is kept.
        """
        commit_request("", NO_GENERATION, "", None, offsets, None)  # Refuses what is no offset.
        for tp, value in offsets.items():
            entry = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
            self._offsets[tp] = entry

    def pending(self, partitions: Collection[TopicPartition]) -> Pending:
        """Return what is to be committed of *partitions*."""
        owned = frozenset(partitions)
        return {tp: entry for tp, entry in self._offsets.items() if tp in owned}

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Take note that *offsets*, as `pending` returned them, need no commit any more."""
        for tp, entry in offsets.items():
            if self._offsets.get(tp) is entry:  # Otherwise the caller is further by now.
                del self._offsets[tp]

    def refused(self, offsets: Pending, error: CommitRefused) -> None:
        """Keep only those of *offsets* that may be stored at another time."""
        self.committed(
            {
                tp: entry
                for tp, entry in offsets.items()
                if tp not in error.errors or not _may_pass(error.errors[tp])
            }
        )

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop what was stored of *partitions*: they are given up, or committed otherwise."""
        for tp in partitions:
            self._offsets.pop(tp, None)


def _may_pass(code: int) -> bool:
    try:
        return ERRORS[ErrorCode(code)].remedy is Remedy.RETRY
    except ValueError:
        return False
