"""Common code of the daemon's child processes, which do its long computations.

A computation of seconds in the daemon would delay every commit, in whatever thread it runs.
Therefore the daemon starts a child process at the lowest priority, which sleeps after each small
step. Standard input carries the job as one line of JSON and then stays open: its end means that
the daemon is gone, and the child ends as well. Standard output carries the progress, one line of
JSON at a time, and at the end the result or the reason why there is none:

    {"progress": …}   {"done": …}   {"damaged": reason}   {"failed": reason}

A retry is of no use after `damaged`: the same damage is found again.
"""

import json
import os
import select
import signal
import sys
from typing import Any, Final

NICE: Final = 19
# Bytes of the log between two rests, and the length of a rest in seconds. A low priority isn't
# enough: a flush also waits for a kernel thread, which competes with the daemon and its child as
# a group and gets a busy core only at the next tick. A sleeping process frees its core at once.
REST_BYTES: Final = 8 * 1024
REST_S: Final = 0.000_05
_STDIN: Final = 0


class ParentGone(Exception):
    """The parent has closed its pipe or has ended, so the result has no reader."""


def begin() -> Any:
    """Set the priority and signals of a child process; return the job from standard input."""
    os.nice(NICE)
    # Ctrl-C in a terminal reaches all its processes; the daemon decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return json.loads(sys.stdin.buffer.readline())


def say(what: str, value: object) -> None:
    """Write one line for the parent.

    Raises:
        ParentGone: The pipe is closed.
    """
    try:
        sys.stdout.write(json.dumps({what: value}) + "\n")
        sys.stdout.flush()
    except BrokenPipeError as exc:
        raise ParentGone from exc


def rest() -> None:
    """Sleep for `REST_S`, so that other processes get the core.

    Raises:
        ParentGone: Standard input has ended.
    """
    # Nothing follows the job on standard input, so it is readable only at its end.
    if select.select([_STDIN], [], [], REST_S)[0]:
        raise ParentGone
