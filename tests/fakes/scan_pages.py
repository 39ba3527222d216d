"""Pages of offsets, made the slow way."""

import struct
from collections.abc import Sequence

import msgpack

from protocol.messages import OffsetColumns, ScannedOffset


def page_of(offsets: Sequence[ScannedOffset]) -> OffsetColumns:
    """Return *offsets* as a coordinator answers them in columns."""
    runs: list[tuple[str, str, int]] = []
    rows, sizes = b"", b""
    for one in offsets:
        named = (one.group_id, one.topic)
        if runs and runs[-1][:2] == named:
            runs[-1] = (*named, runs[-1][2] + 1)
        else:
            runs.append((*named, 1))
        row = msgpack.packb((one.partition, one.offset, one.leader_epoch, one.metadata, 0))
        rows += row
        sizes += struct.pack(">H", len(row))
    committed = [one.commit_timestamp_ms for one in offsets]
    expires = [one.expire_timestamp_ms for one in offsets]
    return OffsetColumns(
        tuple(group for group, _, _ in runs),
        tuple(topic for _, topic, _ in runs),
        struct.pack(f">{len(runs)}I", *[count for _, _, count in runs]),
        rows,
        sizes,
        struct.pack(f">{len(offsets)}q", *committed),
        b"" if set(expires) <= {-1} else struct.pack(f">{len(offsets)}q", *expires),
    )
