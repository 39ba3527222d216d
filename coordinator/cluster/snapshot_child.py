"""The process that makes a snapshot: ``python -m coordinator.cluster.snapshot_child``.

The process has its own session, so its requests never delay those of the daemon.
`coordinator.log.child` describes how it receives its job and reports the result.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from coordinator.cluster.engine import Snapshot
from coordinator.cluster.snapshots import make_snapshot
from coordinator.cluster.znodes import decode_snapshot, encode_snapshot
from coordinator.cluster.zookeeper import Visit, access_of
from coordinator.config import ConfigError, Settings, load_settings, settings_in_force
from coordinator.log.child import REST_BYTES, ParentGone, begin, rest, say
from coordinator.log.errors import LogCorrupt, LogError, LogIncompatible

# Time limit for the connection, and for each answer, in seconds.
PATIENCE_S: Final = 30.0
# Prefixes of the settings of the connection to ZooKeeper.
_PREFIXES: Final = ("cluster.zookeeper", "cluster.session.")


def encode_job(settings: Settings, journal: int, name: str) -> bytes:
    """Return the child's input line: make the snapshot *name* of *journal*."""
    overrides = [
        f"{one.name}={one.value}"
        for one in settings_in_force(settings)
        if one.name.startswith(_PREFIXES)
    ]
    return json.dumps({"settings": overrides, "journal": journal, "name": name}).encode() + b"\n"


def decode_result(done: str) -> Snapshot:
    """Return the snapshot that the child has reported."""
    return decode_snapshot(done.encode())


def main() -> None:
    """Do one job: exit status 1 if the parent process is gone."""
    try:
        _tell(begin())
    except ParentGone:
        sys.exit(1)


def _tell(job: dict[str, Any]) -> None:
    try:
        snapshot = _made(job["settings"], job["journal"], job["name"])
    except (LogCorrupt, LogIncompatible) as exc:
        say("damaged", str(exc))
    except (LogError, ConfigError) as exc:
        say("failed", str(exc))
    else:
        say("done", encode_snapshot(snapshot).decode())


def _made(settings: Sequence[str], journal: int, name: str) -> Snapshot:
    with Visit(access_of(load_settings(overrides=settings)), patience_s=PATIENCE_S) as visit:
        return visit.run(make_snapshot(journal, name, _Rests()))


class _Rests:
    """Called after each batch: rests after every `REST_BYTES`."""

    def __init__(self) -> None:
        self._bytes = 0

    def __call__(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._bytes >= REST_BYTES:
            self._bytes = 0
            rest()


if __name__ == "__main__":
    main()
