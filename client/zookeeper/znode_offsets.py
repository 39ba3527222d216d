"""Fetches and commits the offsets of groups in an ensemble, for one client. All calls block."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from client.exceptions import CoordinatorUnavailable, FatalError, OutcomeUnknown
from client.zookeeper.ensemble import Ensemble
from client.zookeeper.znodes import (
    Failed,
    Status,
    ZnodeWrite,
    decoded,
    name_problem,
    offsets_path,
)
from protocol.partition import INT32_MAX, TopicPartition
from protocol.text import some_of

T = TypeVar("T")

logger = logging.getLogger("client.zookeeper")


@dataclass
class Caller:
    """Task that waits for a commit; `is_gone` is set once it no longer waits."""

    is_gone: bool = False


@dataclass(eq=False)
class ZnodeOffsets:
    """Fetches and commits offsets, and remembers the last known version of each znode."""

    _ensemble: Ensemble
    _versions: dict[str, int] = field(default_factory=dict)
    _ahead: set[str] = field(
        default_factory=set
    )  # Znodes that have a larger offset than the commit.

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None, timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Return the offsets of *partitions*, or of the whole group (None).

        Raises:
            CoordinatorUnavailable: The znodes can't be read now.
            FatalError: A znode holds no offset, may not be read, or can't have this name.
        """
        end_s = time.monotonic() + timeout_s
        check_names([group])
        if partitions is None:
            wanted = self._partitions_of(group, end_s)
        else:
            wanted = sorted(set(partitions))
            check_names({tp.topic for tp in wanted})
        paths = [offsets_path(group, *tp) for tp in wanted]
        found = {}
        replies = self._ensemble.read(paths, end_s - time.monotonic())
        for tp, path, reply in zip(wanted, paths, replies, strict=True):
            self._versions.pop(path, None)
            if (data := self._there(path, reply)) is not None:
                try:
                    found[tp] = decoded(data.data)
                except ValueError as exc:
                    raise FatalError(
                        f"{path} in {self._ensemble.name} {exc}: correct it, or delete it"
                    ) from None
                self._versions[path] = data.version
        return found

    def _partitions_of(self, group: str, end_s: float) -> list[TopicPartition]:
        topics = self._below([offsets_path(group)], end_s)[0]
        numbers = self._below([offsets_path(group, topic) for topic in topics], end_s)
        return sorted(
            TopicPartition(topic, int(number))
            for topic, names in zip(topics, numbers, strict=True)
            for number in names
            if is_partition(number)
        )

    def _below(self, paths: list[str], end_s: float) -> list[Sequence[str]]:
        replies = self._ensemble.children(paths, end_s - time.monotonic())
        return [self._there(path, reply) or () for path, reply in zip(paths, replies, strict=True)]

    def _there(self, path: str, reply: T | Failed | Status) -> T | None:
        """Return the reply if it is a result; None if there is no znode.

        Raises:
            CoordinatorUnavailable: No answer came.
            FatalError: The ensemble refused the request.
        """
        if isinstance(reply, Failed):
            raise FatalError(f"{path} in {self._ensemble.name} can't be read: {reply.why}")
        if not isinstance(reply, Status):
            return reply
        if reply is Status.MISSING:
            return None
        raise CoordinatorUnavailable(f"{self._ensemble.name} didn't answer in time")

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        timeout_s: float,
        caller: Caller,
        *,
        is_reset: bool,
    ) -> None:
        """Write *offsets*, each into its znode; see `client.zookeeper.znodes`.

        Args:
            group: The group's name.
            offsets: The offset of each partition.
            timeout_s: How long to try.
            caller: The waiting task; once it is gone, no further request is sent.
            is_reset: Whether an operator sets the offsets; they may then go back.

        Raises:
            CoordinatorUnavailable: Nothing was written.
            OutcomeUnknown: Some offsets may have been written.
            FatalError: Some offsets can't be written; the message says how many were.
        """
        end_s = time.monotonic() + timeout_s
        check_names({group, *(tp.topic for tp in offsets)})
        writes = {
            path: ZnodeWrite(path, offset, self._versions.get(path), is_reset=is_reset)
            for path, offset in ((offsets_path(group, *tp), offsets[tp]) for tp in sorted(offsets))
        }
        has_begun = False
        while going_on := [one for one in writes.values() if one.request is not None]:
            left_s = end_s - time.monotonic()
            if caller.is_gone or left_s <= 0:
                raise OutcomeUnknown(f"{self._ensemble.name} didn't confirm it in time")
            try:
                requests = [one.request for one in going_on if one.request is not None]
                replies = self._ensemble.ask(requests, left_s)
            except CoordinatorUnavailable as exc:
                if has_begun:
                    raise OutcomeUnknown(str(exc)) from exc
                raise
            has_begun = True
            for one, reply in zip(going_on, replies, strict=True):
                one.take(reply)
        self._note(group, writes)

    def _note(self, group: str, writes: Mapping[str, ZnodeWrite]) -> None:
        self._tell_ahead(group, writes)
        for path, one in writes.items():
            if one.version is None:
                self._versions.pop(path, None)
            else:
                self._versions[path] = one.version
        if failures := [f"{path}: {one.failure}" for path, one in writes.items() if one.failure]:
            written = sum(one.version is not None for one in writes.values())
            raise FatalError(
                f"{self._ensemble.name} refuses {some_of(failures)}; "
                f"it has stored {written} of {len(writes)} offsets"
            )

    def _tell_ahead(self, group: str, writes: Mapping[str, ZnodeWrite]) -> None:
        """Warn of znodes that have a larger offset: once for each, until it is written again."""
        ahead = {path: one.kept for path, one in writes.items() if one.kept is not None}
        told = [
            f"{path} has {kept}, {kept - writes[path].offset} more than "
            f"the {writes[path].offset} of the commit"
            for path, kept in ahead.items()
            if path not in self._ahead
        ]
        self._ahead.difference_update(writes.keys() - ahead.keys())
        self._ahead.update(ahead)
        if told:
            logger.warning(
                "%s is ahead of the commits of group %r, and keeps its offsets: %s. Another "
                "program has put them forward; the next owner begins there. To begin there now, "
                "restart the members. To undo it, stop them, and commit the right offsets by a "
                "client with the same properties (client.commit)",
                self._ensemble.name,
                group,
                some_of(told),
            )

    def close(self) -> None:
        """End the session."""
        self._ensemble.close()


def is_partition(name: str) -> bool:
    """Return whether a znode's name is a partition number, without leading zeros."""
    is_number = name.isascii() and name.isdecimal() and len(name) <= 10
    return is_number and int(name) <= INT32_MAX and str(int(name)) == name


def check_names(names: Iterable[str]) -> None:
    """Check that znodes can have these names.

    Raises:
        FatalError: No znode can have one of them.
    """
    for name in names:
        if problem := name_problem(name):
            raise FatalError(f"{name!r} can't be in ZooKeeper: {problem}")
