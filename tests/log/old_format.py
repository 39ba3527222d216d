"""Logs as a release wrote them whose format was 1: what is read must not change with the writer."""

import json
import struct
import zlib
from collections.abc import Sequence

from tests.fakes.disk import Disk

_PREFIX = struct.Struct(">II")
_REST = struct.Struct(">BHIQQq")

# partition, base_offset, flush_start, timestamp_ms, packed entries
OldBatch = tuple[int, int, int, int, bytes]


def old_flush(batches: Sequence[OldBatch], leader_epoch: int = 1) -> bytes:
    """Return the bytes of these batches."""
    pieces = []
    for partition, base_offset, flush_start, timestamp_ms, packed in batches:
        rest = _REST.pack(1, partition, leader_epoch, base_offset, flush_start, timestamp_ms)
        crc = zlib.crc32(rest + packed)
        pieces.append(_PREFIX.pack(len(rest) + len(packed), crc) + rest + packed)
    return b"".join(pieces)


def state_file(body: dict[str, object]) -> bytes:
    """Return the bytes of a meta file, a manifest or a marker of a clean stop."""
    line = json.dumps(body).encode() + b"\n"
    return line + f"{zlib.crc32(line):08x}\n".encode()


def old_folder(content: bytes, *, clean: bool = False) -> Disk:
    """Return a folder of format 1, of four partitions, whose one segment is *content*."""
    disk = Disk()
    name = "00000000000000000000-000007.segment"
    cluster = {"format": 1, "cluster_id": "A" * 22}
    row = {"name": name, "base": 0, "end": None, "data_bytes": None, "compacted": False}
    listed = {"segments": [row], "compacted_below": {}, "next_serial": 8}
    disk.put(name, content)
    disk.put("meta", state_file({**cluster, "node_id": 1, "num_partitions": 4, "leader_epoch": 1}))
    disk.put("manifest", state_file({**cluster, **listed}))
    if clean:
        disk.put("clean", state_file({"format": 1, "segment": name, "end": len(content)}))
    return disk
