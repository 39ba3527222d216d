"""The process that compacts: ``python -m coordinator.log.compact_child``.

A computation of seconds in the daemon would hold up every commit, whatever thread it runs in. So
the daemon starts this as its child, at the lowest priority. The job is a line of JSON on the
standard input, which then stays open: its end means that the daemon is gone, and then the child
ends, too. On the standard output it tells how far it is, a line of JSON at a time, and at last what
it has made, or why it has made nothing. It imports little: it starts at once and stays small.
"""

import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any, Final

from coordinator.log.compaction import Compacted, Job, Progress, compact, finish
from coordinator.log.directory import OsDirectory
from coordinator.log.errors import LogError
from coordinator.log.format import FlushKey
from coordinator.log.state_files import SegmentInfo

NICE: Final = 19
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
    # A nice process still keeps the core for the rest of its slice, and a daemon on the same one
    # waits for it. An idle one leaves it at once.
    with suppress(AttributeError, OSError):  # Not every system has it.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Ctrl-C in a terminal reaches all its processes; the daemon decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path, job = decode_job(sys.stdin.buffer.readline())
    os.set_blocking(_STDIN, False)
    try:
        _do(OsDirectory(path), job)
    except ParentGone:
        sys.exit(1)


def _do(directory: OsDirectory, job: Job) -> None:
    """Compact and tell the outcome; outputs that nobody takes over are removed.

    Another daemon may be running by then, which looked for them when it started.
    """
    try:
        say("done", encode_result(finish(compact(directory, job), _report)))
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


def _report(progress: Progress) -> None:
    try:
        if not os.read(_STDIN, 1):
            raise ParentGone
    except BlockingIOError:
        pass
    say("progress", progress)


if __name__ == "__main__":
    main()
