"""Errors of a cluster's log. Each has the exit status of the process."""

from typing import Final

from coordinator.log.errors import EXIT_UNREACHABLE, LogCorrupt, LogError, LogRefused

EXIT_BUG: Final = 70


class ClusterRefused(LogRefused):
    """The ensemble, or its content, can't be used as it is. Nothing in it was changed."""


class ClusterGone(LogCorrupt):
    """ZooKeeper has lost acknowledged data, or nodes reach another ensemble or chroot."""

    def __init__(self, what: str) -> None:
        """Build the message; *what* was found in place of the data."""
        super().__init__(
            f"the cluster's data is gone from ZooKeeper: {what}. Stop all nodes and restore "
            "ZooKeeper, or correct cluster.zookeeper. Make a new, empty cluster by "
            "`group-coordinator cluster init` only if nothing can be restored"
        )


class EnsembleUnreachable(LogError):
    """No server of the ensemble answers, or the connection was lost."""

    exit_status = EXIT_UNREACHABLE


class LogBroken(LogError):
    """The log is in a state that this code never writes: a bug, here or in ZooKeeper."""

    exit_status = EXIT_BUG
