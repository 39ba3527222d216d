"""Child process that compacts the log: ``python -m coordinator.log.compact_child``; see `child`.

The module imports little, so the process starts quickly and stays small.
"""

import json
import sys
from contextlib import suppress
from typing import Any

from coordinator.log.child import REST_BYTES, ParentGone, begin, rest, say
from coordinator.log.compaction import STEP_BYTES, Compacted, Job, Progress, compact, finish
from coordinator.log.directory import OsDirectory
from coordinator.log.errors import LogError
from coordinator.log.format import FlushKey
from coordinator.log.state_files import SegmentInfo


def encode_job(path: str, job: Job) -> bytes:
    """Return the line that the child reads from standard input."""
    segments = [list(segment) for segment in job.segments]
    body = {**job._asdict(), "path": path, "segments": segments, "key": job.key.secret.hex()}
    return json.dumps(body).encode() + b"\n"


def decode_job(body: dict[str, Any]) -> tuple[str, Job]:
    """Return the path of the data folder, and the job."""
    path = body.pop("path")
    segments = tuple(SegmentInfo(*segment) for segment in body.pop("segments"))
    key = FlushKey(bytes.fromhex(body.pop("key")))
    return path, Job(segments=segments, key=key, **body)


def encode_result(compacted: Compacted) -> dict[str, Any]:
    """Return *compacted* as values that JSON can carry."""
    outputs = [list(output) for output in compacted.outputs]
    below = list(compacted.dropped_below.items())
    return {"outputs": outputs, "dropped_below": below, "live_entries": compacted.live_entries}


def decode_result(body: dict[str, Any]) -> Compacted:
    """Return the argument of `encode_result`."""
    outputs = tuple(SegmentInfo(*output) for output in body["outputs"])
    below = dict(body["dropped_below"])
    return Compacted(outputs, below, body["live_entries"])


def main() -> None:
    """Read one job, do it, and exit; the status is 1 if the parent is gone."""
    path, job = decode_job(begin())
    try:
        _do(OsDirectory(path), job)
    except ParentGone:
        sys.exit(1)


def _do(directory: OsDirectory, job: Job) -> None:
    """Compact and report the outcome; after a failure, remove the outputs.

    The next daemon can't be relied on to remove them: it may have started, and cleaned up,
    before this process found that its parent is gone.
    """
    try:
        work = compact(directory, job, step_bytes=REST_BYTES)
        say("done", encode_result(finish(work, _Steps())))
    except (LogError, OSError, ParentGone) as exc:
        with suppress(OSError):
            _remove_outputs(directory, job)
        if isinstance(exc, ParentGone):
            raise
        if isinstance(exc, LogError):
            say("damaged", str(exc))
        else:
            say("failed", f"the disk failed: {exc}")


def _remove_outputs(directory: OsDirectory, job: Job) -> None:
    for name in directory.names():
        if name.startswith(job.prefix + "-"):
            directory.remove(name)


class _Steps:
    """Callback between two steps of a job: rests, and reports every `STEP_BYTES` that were read."""

    def __init__(self) -> None:
        self._told_bytes = 0  # Bytes read, as last reported.

    def __call__(self, progress: Progress) -> None:
        rest()
        if progress.read_bytes - self._told_bytes >= STEP_BYTES:
            self._told_bytes = progress.read_bytes
            say("progress", progress)


if __name__ == "__main__":
    main()
