"""A node of a cluster: its logs are in ZooKeeper, and it has no data folder.

Imported only where `cluster.zookeeper` is set: who has none needs no client of ZooKeeper.
"""

import secrets
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog

from coordinator.cluster import snapshot_child
from coordinator.cluster.engine import Registration, Snapshot
from coordinator.cluster.entries import FORMATS
from coordinator.cluster.founding import Found, find_or_found
from coordinator.cluster.layout import Layout
from coordinator.cluster.node import ClusterNode
from coordinator.cluster.zookeeper import ZooKeeper, access_of
from coordinator.config import SETTINGS, Address, Settings, text_of
from coordinator.runtime.children import run_child
from coordinator.runtime.environment import Environment
from coordinator.runtime.flusher import Mailbox
from coordinator.runtime.replication import Replication
from coordinator.runtime.snapshotter import Snapshots

log: Final = structlog.get_logger()

# How long a start waits for ZooKeeper, and for each of its answers.
PATIENCE_S: Final = 60.0
# A journal that another node leads is read so often. What is read at once costs little more than
# one entry; a node that comes to lead is behind by no more than this.
FOLLOW_INTERVAL_MS: Final = 50
_ADVICE: Final = (
    "If there was one, its data is gone: correct cluster.zookeeper, or restore ZooKeeper. "
    "Make a new, empty one by: {}"
)


class ClusterLogs:
    """What keeps the logs of this process: see `coordinator.server.run.Logs`.

    Attributes:
        leader_epoch: None: each journal has its own.
    """

    leader_epoch: None = None

    def __init__(
        self,
        settings: Settings,
        told: Sequence[Address],
        environment: Environment,
        new_cluster_id: Callable[[], str],
    ) -> None:
        """Make the logs of a node; the cluster is found when their store runs.

        Args:
            settings: They name the ensemble.
            told: Where clients and other nodes reach each listener.
            environment: Of the node.
            new_cluster_id: Makes the id of a new cluster.

        Raises:
            ConfigError: A file that the settings name can't be used.
        """
        access = access_of(settings)
        layout = Layout(settings.offsets_topic_num_partitions, settings.cluster_journals)
        self._take_secret: Callable[[bytes], None] = lambda _: None
        self._find = partial(
            find_or_found,
            access,
            layout,
            cluster_id=settings.cluster_id,
            new_cluster_id=new_cluster_id,
            patience_s=PATIENCE_S,
            advice=None if settings.cluster_create else _ADVICE.format(init_command(settings)),
        )
        now = environment.now()
        machine = ClusterNode(
            registration=Registration(
                settings.node_id,
                tuple(f"{address.scheme}://{address}" for address in told),
                now.wall_ms,
                _new_id(),
                FORMATS,
                is_ready=False,
            ),
            layout=layout,
            new_id=_new_id,
            session_timeout_ms=settings.cluster_session_timeout_ms,
            follow_interval_ms=FOLLOW_INTERVAL_MS,
            keep_bytes=settings.cluster_tail_bytes,
            wall_offset_ms=now.wall_ms - now.mono_ms,
        )
        self.store = self.coordination = Replication(
            machine,
            environment,
            cluster_id=settings.cluster_id,
            num_partitions=layout.num_partitions,
            state_max_bytes=settings.cluster_state_max_bytes,
            snapshots=Snapshots(
                partial(_make_snapshot, settings),
                tail_bytes=settings.cluster_snapshot_bytes,
                tail_entries=settings.cluster_snapshot_entries,
            ),
            nodes_expected=settings.cluster_nodes,
        )
        self._environment = environment
        self.store.find = self._found
        deliver = Mailbox(environment.poller.watch).put
        self.store.engine = ZooKeeper(access, deliver, self.store.told, environment.emit_event)

    async def _found(self) -> None:
        """Find the cluster, or make it if `cluster.create` says so. Raises LogError."""
        answers: list[Found] = []
        # The end of the process doesn't wait for this thread, which may wait for ZooKeeper.
        await self._environment.run_blocking(lambda: answers.append(self._find()))
        (found,) = answers
        if found.is_new:
            log.info("log.created", cluster_id=found.cluster_id)
        for server, reason in found.unknown.items():
            log.warning("zookeeper.release_unknown", server=server, reason=reason)
        log.info("cluster.found", cluster_id=found.cluster_id)
        self._take_secret(found.secret)
        self.store.cluster_id = self.store.machine.cluster_id = found.cluster_id

    def on_secret(self, take: Callable[[bytes], None]) -> None:
        """Have *take* called with it when the cluster is found."""
        self._take_secret = take

    def apply(self, settings: Settings) -> None:
        """Let the logs become so large, and expect so many nodes, from now on."""
        self.store.state_max_bytes = settings.cluster_state_max_bytes
        self.store.nodes_expected = settings.cluster_nodes

    def close(self, *, clean: bool) -> None:
        """Do nothing: what is acknowledged is in ZooKeeper."""


def init_command(settings: Settings) -> str:
    """Return the command that makes the cluster of *settings*, for a shell."""
    words = [
        f"--set={one.name}={text_of(getattr(settings, one.attribute))}"
        for one in SETTINGS
        if one.name in settings.origins
        and (one.name.startswith("cluster.") or one.name == "offsets.topic.num.partitions")
    ]
    return shlex.join(["group-coordinator", "cluster", "init", *words])


async def _make_snapshot(settings: Settings, journal: int, name: str) -> Snapshot:
    """Have a child make one. Raises CompactionFailed."""
    job = snapshot_child.encode_job(settings, journal, name)
    return snapshot_child.decode_result(await run_child(snapshot_child.__name__, job))


def _new_id() -> str:
    return secrets.token_hex(16)
