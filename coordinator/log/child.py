"""What the processes have in common that compute for the daemon.

A computation of seconds in the daemon would hold up every commit, whatever thread it runs in. So
the daemon starts a child, at the lowest priority, which rests after each small step. The job is a
line of JSON on the standard input, which then stays open: its end means that the daemon is gone,
and then the child ends, too. On the standard output it tells how far it is, a line of JSON at a
time, and at last what it has made, or why it has made nothing:

    {"progress": …}   {"done": …}   {"damaged": reason}   {"failed": reason}

What is damaged is damaged at the next try, too.
"""

import json
import os
import select
import signal
import sys
from typing import Any, Final

NICE: Final = 19
# A low priority isn't enough: flushes also wait for a thread of the kernel's, which competes with
# the daemon and its child as a group and gets a busy core only at the next tick. A process that
# sleeps for a moment leaves it at once. After so much of the log it does.
REST_BYTES: Final = 8 * 1024
REST_S: Final = 0.000_05
_STDIN: Final = 0


class ParentGone(Exception):
    """Nobody waits for the result any more."""


def begin() -> Any:
    """Be such a process; return the job."""
    os.nice(NICE)
    # Ctrl-C in a terminal reaches all its processes; the daemon decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return json.loads(sys.stdin.buffer.readline())


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


def rest() -> None:
    """Let others work for a moment.

    Raises:
        ParentGone: The parent is.
    """
    # The standard input is readable only at its end.
    if select.select([_STDIN], [], [], REST_S)[0]:
        raise ParentGone
