"""Where a stream of changes stands, and which ranges its next batch takes. Pure.

The stream's offset holds for each offsets partition the position of the next change to read, or
-1 before its snapshot, and says of which coordinator::

    {"0": 1712, "1": -1, "@": {"v": 1, "cluster_id": "..."}}
"""

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

HEAD: Final = "@"
FORMAT_VERSION: Final = 1
BEFORE_SNAPSHOT: Final = -1

Positions = dict[int, int]


class LogOffsetError(ValueError):
    """A checkpoint that this stream can't go on from; the message says why and what to do."""


class LogRange(NamedTuple):
    """Changes of an offsets partition: ``start <= position < end``; or first a snapshot of it."""

    number: int
    start: int
    end: int

    @property
    def is_snapshot(self) -> bool:
        """Whether it begins with everything that is committed, not with a change."""
        return self.start == BEFORE_SNAPSHOT


def encode_positions(positions: Mapping[int, int], cluster_id: str) -> dict[str, object]:
    """Return the offset, ready for JSON."""
    offset: dict[str, object] = {str(number): positions[number] for number in sorted(positions)}
    offset[HEAD] = {"v": FORMAT_VERSION, "cluster_id": cluster_id}
    return offset


def decode_positions(offset: Mapping[str, object], cluster_id: str | None = None) -> Positions:
    """Read an offset; with *cluster_id*, check that it is one of that coordinator.

    Raises:
        LogOffsetError: it is of another source, another coordinator, or a newer format.

    """
    head = offset.get(HEAD)
    if not isinstance(head, Mapping):
        raise _unreadable(offset)
    if head.get("v") != FORMAT_VERSION:
        raise LogOffsetError(
            f"the checkpoint's offset has format version {head.get('v')!r}, this release reads "
            f"version {FORMAT_VERSION}: use the release that wrote it, or a new checkpoint"
        )
    if cluster_id is not None and head.get("cluster_id") != cluster_id:
        raise LogOffsetError(
            f"the checkpoint belongs to the coordinator with the cluster id "
            f"{head.get('cluster_id')!r}, option 'coordinator' names one with {cluster_id!r}: "
            "positions of one mean nothing to the other; use a new checkpoint"
        )
    positions: Positions = {}
    for key, value in offset.items():
        if key == HEAD:
            continue
        if not key.isdecimal() or type(value) is not int or value < BEFORE_SNAPSHOT:
            raise _unreadable(offset)
        positions[int(key)] = value
    return positions


def share(waiting: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Divide *limit* fairly over what waits per partition; what a small one leaves, others get.

    Everyone who waits gets at least 1, also where the limit is smaller than their number: none
    starves.
    """
    left = {number: count for number, count in waiting.items() if count > 0}
    if limit is None or sum(left.values()) <= limit:
        return left
    given: dict[int, int] = {}
    for n, number in enumerate(sorted(left, key=lambda number: (left[number], number))):
        given[number] = min(left[number], max(1, limit // (len(left) - n)))
        limit -= given[number]
    return given


def next_positions(
    start: Mapping[int, int], ends: Mapping[int, int], limit: int | None, *, rescans: bool
) -> Positions:
    """Return where the next batch ends: at most *limit* positions on, snapshots not counted.

    Args:
        start: Where the stream stands.
        ends: Where the logs end, of the same partitions.
        limit: The most positions of all partitions together, None for no limit.
        rescans: Whether to begin anew with a partition whose log ends before its start.

    Raises:
        LogOffsetError: there is such a partition, and it is not to begin anew.

    """
    waiting = {n: ends[n] - at for n, at in start.items() if at != BEFORE_SNAPSHOT}
    shares = share(waiting, limit)
    following = {}
    for number, at in start.items():
        if at == BEFORE_SNAPSHOT:
            following[number] = ends[number]
        elif waiting[number] >= 0:
            following[number] = at + shares.get(number, 0)
        elif rescans:
            following[number] = BEFORE_SNAPSHOT  # The batch after this one takes the snapshot.
        else:
            raise LogOffsetError(
                f"the log of offsets partition {number} ends at {ends[number]}, before the "
                f"checkpoint's position {at}: was the coordinator restored from a backup? Set "
                "option 'onPositionTooOld' to 'rescan' to go on with a snapshot of that "
                "partition, or use a new checkpoint"
            )
    return following


def ranges(start: Mapping[int, int], end: Mapping[int, int]) -> list[LogRange]:
    """Return what a batch from *start* to *end* reads."""
    return [
        LogRange(number, start.get(number, BEFORE_SNAPSHOT), end[number])
        for number in sorted(end)
        if start.get(number, BEFORE_SNAPSHOT) < end[number]
    ]


def _unreadable(offset: Mapping[str, object]) -> LogOffsetError:
    return LogOffsetError(
        "the checkpoint holds an offset that a stream of offset changes did not write: "
        f"{json.dumps(offset)[:200]}; each query needs a checkpoint of its own"
    )
