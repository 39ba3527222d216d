"""Catalogue of the events that the daemon logs: name, level, keys and meaning of each.

Names and keys are stable, as collectors and alerts depend on them. docs/logs.md has the same
table, and tests check each line that a daemon writes against the catalogue.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
# Keys of every line, in addition to those of its event; node_id only on a node of a cluster.
COMMON_KEYS: Final = ("event", "level", "timestamp", "node_id")


class EventKind(NamedTuple):
    """One event of the catalogue.

    Attributes:
        keys: Keys in addition to `COMMON_KEYS`, in the order of the documentation.
        optional: The keys that may be missing.
    """

    name: str
    level: str
    meaning: str
    keys: tuple[str, ...]
    optional: frozenset[str]


def _kind(name: str, level: str, keys: str, meaning: str) -> EventKind:
    """Return a kind; *keys* are separated by spaces, optional ones end with a question mark."""
    words = keys.split()
    optional = frozenset(word[:-1] for word in words if word.endswith("?"))
    return EventKind(name, level, meaning, tuple(w.removesuffix("?") for w in words), optional)


_REBALANCE: Final = (
    "group number started_ms trigger reason member_id group_instance_id client_id client_host "
    "old_generation new_generation join_ms sync_ms members outcome late"
)
_MEMBER: Final = "group member_id group_instance_id client_id client_host"

CATALOGUE: Final = (
    # --- start and stop ---
    _kind(
        "listening",
        "info",
        "host port tls cluster_id? leader_epoch? software",
        "The socket is open; groups are loaded next. Each address has a line. A node of a cluster "
        "has no `leader_epoch`: each journal has its own; and no `cluster_id` before "
        "`cluster.found`, unless that is set.",
    ),
    _kind("http.listening", "info", "host port tls", "The same, of the HTTP listener."),
    _kind(
        "cluster.found",
        "info",
        "cluster_id",
        "A node of a cluster has found it in ZooKeeper, and reads its logs next. Until they are "
        "read, requests are answered COORDINATOR_NOT_AVAILABLE (15).",
    ),
    _kind(
        "loading",
        "info",
        "partitions entries bytes total_bytes percent",
        "How far a load is that takes longer than a second; one a second.",
    ),
    _kind("ready", "info", "entries load_ms", "Everything is loaded and served."),
    _kind("stopping", "info", "", "SIGTERM or SIGINT came; what is under way is finished."),
    _kind("stopped", "info", "clean", "The end. `clean` is false if the drain took too long."),
    _kind(
        "refused", "critical", "reason", "The start is refused; the exit status says of what kind."
    ),
    _kind(
        "settings.unused",
        "warning",
        "names",
        "The start: what was set for a data folder, and this is a node of a cluster; or for "
        "a cluster, and there is no `cluster.zookeeper`.",
    ),
    _kind(
        "settings.reloaded",
        "info",
        "changed needs_restart",
        "SIGHUP: the names of the settings "
        "that are others now, and of those that will be after a restart.",
    ),
    _kind(
        "settings.refused",
        "error",
        "reason",
        "SIGHUP, and the file or the environment can't be: nothing has changed.",
    ),
    # --- several nodes of one machine ---
    _kind("node.started", "info", "node pid", "`serve --nodes` has started a node."),
    _kind(
        "node.ended",
        "warning",
        "node exit_status retry_in_ms reason?",
        "It has ended, and is started again; 128 and more: by a signal. With a `reason` it "
        "could not even be started.",
    ),
    _kind(
        "node.given_up",
        "critical",
        "node exit_status",
        "It was refused, and is not started again; its own lines say why.",
    ),
    _kind(
        "node.hangs",
        "error",
        "node",
        "Its event loop stands still, or it doesn't end in time: it is killed.",
    ),
    # --- certificates ---
    _kind(
        "certificate.reloaded",
        "info",
        "subject expires days",
        "The files have changed, and new connections get this certificate.",
    ),
    _kind(
        "certificate.refused",
        "error",
        "reason",
        "The files have changed and can't be used: the certificate before them stays in force.",
    ),
    _kind(
        "certificate.expires_soon",
        "warning",
        "subject expires days",
        "Once a day in the last 14 days of a certificate, "
        "or in the last quarter of a shorter life.",
    ),
    _kind(
        "certificate.key_exposed",
        "warning",
        "path",
        "Everybody on this machine can read the private key.",
    ),
    _kind(
        "tokens.reloaded",
        "info",
        "path count",
        "A file of bearer tokens, or of the keys that sign them, has changed and is in force.",
    ),
    _kind(
        "tokens.refused",
        "error",
        "reason",
        "It has changed and makes no sense: what was in force stays so.",
    ),
    # --- health ---
    _kind(
        "health.problem",
        "warning",
        "part problem",
        "A part of the node is not well from now on, or for another reason.",
    ),
    _kind("health.recovered", "info", "part", "It is well again."),
    _kind(
        "stalled",
        "warning",
        "late_ms",
        "The process stood still, and all deadlines of sessions move by as much.",
    ),
    _kind(
        "storage.full",
        "warning",
        "free_bytes reserve_bytes",
        "The disk's reserve is reached: new offsets are refused.",
    ),
    _kind("storage.has_room", "info", "free_bytes reserve_bytes", "They are taken again."),
    _kind(
        "lines.dropped",
        "warning",
        "count",
        "So many lines of this log were lost before this one, as nobody read them.",
    ),
    _kind(
        "event.unheard",
        "error",
        "of reason",
        "A bug: who follows the events, such as the page, failed at the event `of`.",
    ),
    # --- the log ---
    _kind("log.created", "info", "cluster_id", "A new data folder, or a new cluster in ZooKeeper."),
    _kind(
        "log.file_moved_aside",
        "warning",
        "file moved_to",
        "A file in the data folder that the log doesn't name, such as what a crash left.",
    ),
    _kind(
        "log.torn_tail_cut",
        "warning",
        "segment position cut_bytes saved_as",
        "The last flush before a crash was not whole; nobody was told that it was done.",
    ),
    _kind(
        "log.recovered_after_unclean_stop",
        "warning",
        "segment valid_bytes",
        "The last stop was a crash, a kill or a power failure; everything acknowledged is there.",
    ),
    _kind(
        "log.failed",
        "critical",
        "reason",
        "A write or fsync failed, or the log is damaged: the process ends.",
    ),
    _kind(
        "log.unreadable",
        "error",
        "reason",
        "A reader of changes could not be answered, as the log can't be read.",
    ),
    _kind(
        "partition.unloaded",
        "info",
        "partition",
        "A partition of the offsets log is served no longer; `reload` does that.",
    ),
    _kind("partition.loaded", "info", "partition entries load_ms", "It is served again."),
    _kind(
        "journal.led",
        "info",
        "journal leader_epoch",
        "In a cluster: this node leads a journal from here on, and serves its groups.",
    ),
    _kind("journal.handed_over", "info", "journal", "Another node leads it, as it was asked to."),
    _kind("journal.deposed", "warning", "journal", "Another node has taken it over."),
    _kind(
        "journal.cut_off",
        "warning",
        "journal",
        "The engine can't be reached: nothing is decided, and nobody is removed.",
    ),
    _kind("journal.reached", "info", "journal", "The end of that; its groups are served on."),
    _kind(
        "compaction.started",
        "info",
        "journal? segments? clean_bytes dirty_bytes",
        "A child process begins; `dirty_bytes` came since the last one. In a cluster it is a "
        "snapshot of a journal.",
    ),
    _kind(
        "compaction.finished",
        "info",
        "journal? removed_bytes log_bytes live_entries? duration_ms",
        "The log is smaller.",
    ),
    _kind(
        "compaction.failed",
        "warning",
        "journal? reason retry_in_ms",
        "It came to nothing, the log is as it was; -1: it isn't tried again by itself.",
    ),
    _kind(
        "compaction.not_removed",
        "warning",
        "reason",
        "The old files are left; the next start removes them.",
    ),
    # --- the ensemble of a cluster ---
    _kind(
        "zookeeper.connected",
        "info",
        "server session",
        "There is a connection to a server of ZooKeeper, in the former session or a new one.",
    ),
    _kind(
        "zookeeper.release_unknown",
        "warning",
        "server reason",
        "A server of ZooKeeper was away at the start, or doesn't tell its release; one that is "
        "too old may lose data.",
    ),
    _kind(
        "zookeeper.suspended",
        "warning",
        "reason",
        "The connection broke; another server is looked for. What was on its way is repeated.",
    ),
    _kind(
        "zookeeper.session_expired",
        "warning",
        "session",
        "ZooKeeper has ended the session, and others may lead what this node led.",
    ),
    _kind(
        "zookeeper.client_replaced",
        "warning",
        "reason",
        "The client of ZooKeeper came to nothing, as by a log-in that is refused; the next one "
        "begins in a second.",
    ),
    _kind(
        "zookeeper.stranger",
        "warning",
        "broker",
        "Somebody who is no node, as a broker of Kafka, is registered under the cluster's chroot. "
        "It counts for nothing.",
    ),
    _kind(
        "zookeeper.stray",
        "warning",
        "znode",
        "Somebody has put a znode among the cluster's own. It counts for nothing, but remove it: "
        "what it lies in can't be cleared away.",
    ),
    # --- groups ---
    _kind("group.member_added", "info", f"{_MEMBER} generation", "A member is in the group."),
    _kind(
        "group.member_replaced",
        "info",
        f"{_MEMBER} replaced generation",
        "A static member came back under a new id.",
    ),
    _kind(
        "group.member_removed",
        "info",
        "group member_id client_id client_host reason detail generation partitions",
        "A member is out; `partitions` are those that it owned.",
    ),
    _kind(
        "group.rebalance_started",
        "info",
        "group trigger member detail generation",
        "The group rebalances, because of `member` (empty: of nobody).",
    ),
    _kind(
        "group.generation",
        "info",
        "group generation members leader protocol",
        "All members are there; the leader assigns next.",
    ),
    _kind("group.stable", "info", "group generation members", "Everybody has its assignment."),
    _kind(
        "group.rebalanced",
        "info",
        _REBALANCE,
        "The whole story of a rebalance, once it is over; as `groups rebalances` shows it.",
    ),
    _kind(
        "group.drain_asked",
        "info",
        "group member_id client_id",
        "An operator has asked a member to give everything up.",
    ),
    _kind("group.deleted", "info", "group generation offsets", "Deleted by request."),
    _kind("group.expired", "info", "group generation offsets", "Deleted, as its offsets expired."),
    _kind(
        "group.retention_changed",
        "info",
        "group before after",
        "How long its offsets are kept, in ms; -1: for ever, null: as those of all groups.",
    ),
    _kind(
        "offsets.expired",
        "info",
        "group count topics",
        "Offsets that nobody used for too long are gone; the first topics are named.",
    ),
    _kind(
        "offsets.removed",
        "info",
        "group count topics reason",
        "Likewise by request, or with their topic.",
    ),
    _kind(
        "offsets.altered",
        "info",
        "group count topics detail",
        "An operator has put the group to other offsets.",
    ),
    # --- topics ---
    _kind(
        "topics.changed",
        "info",
        "version count changes",
        "Topics were registered, have grown, or were deleted; the first changes in words.",
    ),
    _kind(
        "topics.forgotten",
        "info",
        "count topics",
        "No group has offsets of these deleted topics any more.",
    ),
    _kind(
        "topics.ends_disagree",
        "warning",
        "topic partition end client_id client_host other_end other_client_id other_client_host "
        "advice",
        "Two connections report ends of one partition that go back and forth: two sources have the "
        "name of one topic, so no lag of it is right. Once a topic and ten minutes, and once a "
        "second.",
    ),
    # --- authorization ---
    _kind(
        "acl.added", "info", "count rules by", "Rules of access are in force; the first in words."
    ),
    _kind("acl.removed", "info", "count rules by", "Rules of access are not in force any more."),
    _kind(
        "user.altered",
        "info",
        "user mechanism change iterations by",
        "A password was set, or removed (`change`); what it is checked by is never told.",
    ),
    _kind(
        "quota.altered",
        "info",
        "principal quotas by",
        "Quotas of a principal were set, or (null) removed; no principal: the default.",
    ),
    _kind(
        "access.refused",
        "warning",
        "principal peer api what error? why left_out",
        "A request, or a part of it, was not allowed. "
        "Once a principal, address and second; `left_out` were not told since.",
    ),
    _kind(
        "access.used",
        "info",
        "principal peer client_id api what left_out?",
        "Something was asked that only administrators may; each time. "
        "Likewise what takes from groups and topics: deletions, AlterOffsets (such as resets), "
        "AlterGroupRetention, drains but of the client's own members, and members of another "
        "principal taken out. Of these, ten different ones a principal, address and second, each "
        "once; `left_out` were not told since. Where nobody has to say who they are, deletions, "
        "AlterOffsets, AlterGroupRetention and drains are told, of `User:ANONYMOUS`.",
    ),
    _kind(
        "login.refused",
        "warning",
        "principal peer mechanism reason left_out",
        "A log-in failed; `reason` is more than the client hears. "
        "The principal is that of the connection before. "
        "Over HTTP the mechanism is token, password or cookie.",
    ),
    # --- clients ---
    _kind(
        "request.refused",
        "warning",
        "peer error reason closed",
        "A request could not be read; "
        "`closed`: the connection ended with it. Once a peer and a while, as all of these.",
    ),
    _kind("request.shed", "warning", "peer reason", "A JoinGroup was refused, as too many wait."),
    _kind(
        "request.failed",
        "error",
        "error_id api peer",
        "A bug of the daemon; `exception` has the traceback. The client got -1.",
    ),
    _kind(
        "http.failed",
        "error",
        "error_id route peer",
        "A bug of the daemon in an answer of the HTTP listener, which was 500.",
    ),
    _kind("http.logged_in", "info", "peer principal by", "Somebody logged in by the page."),
    _kind("http.logged_out", "info", "peer principal", "He logged out."),
    _kind("connection.closed", "warning", "peer reason", "A connection was ended by a limit."),
    _kind(
        "handshake.refused",
        "warning",
        "peer reason",
        "A handshake of TLS came to nothing.",
    ),
    _kind("connection.refused", "warning", "peer reason", "There were too many already."),
    _kind(
        "connection.failed",
        "error",
        "work peer?",
        "A bug of the daemon in work for one client; its connection is closed, or a task without a "
        "`peer` begins anew. `exception` has the traceback.",
    ),
    _kind(
        "accept.paused",
        "warning",
        "reason",
        "No connection could be taken; it is tried again at once.",
    ),
)

_BY_NAME: Final = {kind.name: kind for kind in CATALOGUE}


def level_of(name: str) -> int:
    """Return the level of an event as a number; that of info for an unknown event."""
    kind = _BY_NAME.get(name)
    return LEVELS["info" if kind is None else kind.level]


def problem_of(line: Mapping[str, object], level: str | None = None) -> str | None:
    """Return the deviation of a logged *line* from the catalogue; None if there is none.

    *level* is the level of the line if it isn't among its keys.
    """
    name = str(line["event"])
    kind = _BY_NAME.get(name)
    if kind is None:
        return f"there is no event {name} in the catalogue"
    keys = set(line) - {*COMMON_KEYS, "exception", "exc_info"}
    unknown = keys - set(kind.keys)
    missing = set(kind.keys) - kind.optional - keys
    if unknown or missing:
        return f"{name} has {sorted(unknown)}, and lacks {sorted(missing)}"
    logged = line.get("level", level)
    if logged is not None and logged != kind.level:
        return f"{name} is logged as {logged}, and not as {kind.level}"
    return None
