"""Which offsets a run has committed, and the command that takes them back. Pure."""

import csv
import io
import shlex
from collections.abc import Mapping
from typing import Final, NamedTuple

from client.spark.source.stream_offsets import ReaderIdentity
from protocol.partition import TopicPartition
from protocol.text import some_of

# Partitions that are named in the message; the command has all of them.
NAMED_MAX: Final = 10
# Under names of columns the command takes any text for a topic.
HEAD: Final = "topic,partition,offset"


class Committed(NamedTuple):
    """Where a group was in one partition when a run began, and where it is now."""

    start: int
    end: int

    def __str__(self) -> str:
        """Return both in words."""
        return f"from {self.start} to {self.end}"


def way_back(committed: Mapping[TopicPartition, Committed], reader: ReaderIdentity) -> str:
    """Return sentences about what a run has committed, and the command, to be copied to bash."""
    if not committed:
        return "Nothing of this run is committed"
    moved = [f"{tp} {offsets}" for tp, offsets in sorted(committed.items())]
    lines = [HEAD, *(_line(*tp, committed[tp].start) for tp in sorted(committed))]
    return (
        f"This run has committed {some_of(moved, NAMED_MAX)}. To take that back, stop all readers "
        f"of the group, then run: group-coordinator groups reset-offsets "
        f"{shlex.quote(reader.group)} --at {reader.coordinator} "
        f"--from-file <(printf '%s\\n' {' '.join(map(shlex.quote, lines))})"
    )


def _line(*cells: object) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()
