"""The process that compacts: ``python -m coordinator.log.compact_child``.

A computation of seconds in the daemon would hold up every commit, whatever thread it runs in. So
the daemon starts this as its child, at the lowest priority, and it rests after each small step. The
job is a line of JSON on the standard input, which then stays open: its end means that the daemon is
gone, and then the child ends, too. On the standard output it tells how far it is, a line of JSON at
a time, and at last what it has made, or why it has made nothing. It imports little: it starts at
once and stays small.
"""

import json
import os
import select
import signal
import sys
from contextlib import suppress
from typing import Any, Final

from coordinator.log.compaction import STEP_BYTES, Compacted, Job, Progress, compact, finish
from coordinator.log.directory import OsDirectory
from coordinator.log.errors import LogError
from coordinator.log.format import FlushKey
from coordinator.log.state_files import SegmentInfo

NICE: Final = 19
# A low priority isn't enough: flushes also wait for a thread of the kernel's, which competes with
# the daemon and its child as a group and gets a busy core only at the next tick. A process that
# sleeps for a moment leaves it at once. After so much of the log it does.
REST_BYTES: Final = 8 * 1024
REST_S: Final = 0.000_05
_STDIN: Final = 0


class ParentGone(Exception):
    """Nobody waits for the result any more."""


def encode_job(path: str, job: Job) -> bytes:
    """Return what the child reads."""
    segments = [list(segment) for segment in job.segments]
    body = {**job._asdict(), "path": path, "segments": segments, "key": job.key.secret.hex()}
    return json.dumps(body).encode() + b"\n"


def decode_job(line: bytes) -> tuple[str, Job]:
    """Return the folder and what is to be done in it."""
    body = json.loads(line)
    path = body.pop("path")
    segments = tuple(SegmentInfo(*segment) for segment in body.pop("segments"))
    key = FlushKey(bytes.fromhex(body.pop("key")))
    return path, Job(segments=segments, key=key, **body)


def encode_result(compacted: Compacted) -> dict[str, Any]:
    """Return *compacted* as JSON can carry it."""
    outputs = [list(output) for output in compacted.outputs]
    below = list(compacted.dropped_below.items())
    return {"outputs": outputs, "dropped_below": below, "live_entries": compacted.live_entries}


def decode_result(body: dict[str, Any]) -> Compacted:
    """Return what `encode_result` was given."""
    outputs = tuple(SegmentInfo(*output) for output in body["outputs"])
    below = dict(body["dropped_below"])
    return Compacted(outputs, below, body["live_entries"])


def main() -> None:
    """Do the one job that comes."""
    os.nice(NICE)
    # Ctrl-C in a terminal reaches all its processes; the daemon decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path, job = decode_job(sys.stdin.buffer.readline())
    try:
        _do(OsDirectory(path), job)
    except ParentGone:
        sys.exit(1)


def _do(directory: OsDirectory, job: Job) -> None:
    """Compact and tell the outcome; outputs that nobody takes over are removed.

    Another daemon may be running by then, which looked for them when it started.
    """
    try:
        work = compact(directory, job, step_bytes=REST_BYTES)
        say("done", encode_result(finish(work, _Steps())))
    except (LogError, OSError, ParentGone) as exc:
        with suppress(OSError):
            _remove_outputs(directory, job)
        if isinstance(exc, ParentGone):
            raise
        say("damaged" if isinstance(exc, LogError) else "disk", str(exc))


def _remove_outputs(directory: OsDirectory, job: Job) -> None:
    for name in directory.names():
        if name.startswith(job.prefix + "-"):
            directory.remove(name)


def say(what: str, value: object) -> None:
    """Tell the parent.

    Raises:
        ParentGone: There is none.
    """
    try:
        sys.stdout.write(json.dumps({what: value}) + "\n")
        sys.stdout.flush()
    except BrokenPipeError as exc:
        raise ParentGone from exc


class _Steps:
    """Called between two steps of the work: rests, looks for the parent, now and then reports."""

    def __init__(self) -> None:
        self._told_bytes = 0  # Of what was read.

    def __call__(self, progress: Progress) -> None:
        # The standard input is readable only at its end.
        if select.select([_STDIN], [], [], REST_S)[0]:
            raise ParentGone
        if progress.read_bytes - self._told_bytes >= STEP_BYTES:
            self._told_bytes = progress.read_bytes
            say("progress", progress)


if __name__ == "__main__":
    main()
