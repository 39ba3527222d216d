"""Why a cluster's log can't be opened. Each names the exit status of the process."""

from typing import Final

from coordinator.log.errors import EXIT_UNREACHABLE, LogCorrupt, LogError, LogRefused

EXIT_BUG: Final = 70


class ClusterRefused(LogRefused):
    """The ensemble, or what stands in it, can't be used as it is. Nothing in it was changed."""


class ClusterGone(LogCorrupt):
    """ZooKeeper has lost what nodes have acknowledged, or they reach another place than before."""

    def __init__(self, what: str) -> None:
        """Say it in words; *what* was found in place of the data."""
        super().__init__(
            f"the cluster's data is gone from ZooKeeper: {what}. Stop all nodes and restore "
            "ZooKeeper, or correct cluster.zookeeper. Make a new, empty cluster by "
            "`group-coordinator cluster init` only if nothing can be restored"
        )


class EnsembleUnreachable(LogError):
    """No server of the ensemble answers, or the connection was lost."""

    exit_status = EXIT_UNREACHABLE


class LogBroken(LogError):
    """The log is not as this code leaves it: a bug, here or in what keeps it."""

    exit_status = EXIT_BUG
