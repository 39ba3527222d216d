"""What a cluster is like: as its nodes say, or as it stands in ZooKeeper.

Both come to the same tables. Nodes know how far each of them follows, and ZooKeeper has the last
word on who leads; who can reach the one need not reach the other.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from coordinator.cli.common import AskFailed, Coordinator
from coordinator.cli.grammar import PROGRAM
from coordinator.cli.output import JSON, Output, counted, note, time_of
from coordinator.cluster.engine import (
    Code,
    Leader,
    ListLog,
    ListNodes,
    ReadLeader,
    ReadNode,
    ReadSnapshot,
    Registration,
    Reply,
    Request,
)
from coordinator.cluster.errors import ClusterGone, EnsembleUnreachable
from coordinator.cluster.zookeeper import Visit
from coordinator.config import Settings
from protocol import messages as m


@dataclass(slots=True)
class Node:
    """One that is there.

    Attributes:
        at: Where it is.
        since: When it was registered; None if that isn't known.
        software: Its release; None if it was not asked.
        formats: Of the log, that it reads; None if it was not asked.
    """

    node: int
    at: str
    ready: bool
    since: str | None = None
    software: str | None = None
    formats: tuple[int, int] | None = None


@dataclass(slots=True)
class Journal:
    """One journal.

    Attributes:
        leader: The node; None while nobody who is there leads.
        behind: By node, how many entries a follower has yet to read; None if nobody was asked.
        tail_bytes: None where nobody was asked.
        frozen: The cluster was exported, and nobody leads it any more.
    """

    journal: int
    leader: int | None
    epoch: int | None
    since: str | None
    last_entry: int
    behind: dict[int, int] | None
    tail_entries: int
    tail_bytes: int | None
    snapshot_entry: int
    snapshot_bytes: int
    frozen: bool = False


@dataclass(slots=True)
class Status:
    """A cluster.

    Attributes:
        state_bytes: Of all journals, as they are kept; None where nobody was asked.
        nodes_expected: How many should be registered (cluster.nodes); None if that isn't set.
        problems: In words; without any, all is well.
    """

    cluster_id: str
    nodes: list[Node]
    journals: list[Journal]
    state_bytes: int | None = None
    state_bytes_limit: int | None = None
    nodes_expected: int | None = None
    problems: list[str] = field(default_factory=list)


# --- as its nodes say ----------------------------------------------------------------------


def from_nodes(coordinator: Coordinator) -> Status:
    """Ask a node, and all the others that it knows of.

    Raises:
        AskFailed: The first one doesn't answer, or is in no cluster.
    """
    told: m.DescribeClusterResponse = coordinator.ask(m.DescribeClusterRequest())
    mine: m.DescribeJournalsResponse = coordinator.ask(m.DescribeJournalsRequest())
    status = Status(told.cluster_id, [], [], mine.state_bytes, mine.state_bytes_limit)
    ready = {one.node_id: one.is_ready for one in told.nodes}
    answers: dict[int, m.DescribeJournalsResponse] = {}
    asked = (m.DescribeJournalsRequest(), m.ApiVersionsRequest(PROGRAM, PROGRAM, ""))
    for (number, address), found in sorted(
        coordinator.ask_nodes(*asked).items(), key=lambda item: item[0]
    ):
        answer, hello = (found, None) if isinstance(found, AskFailed) else found
        if isinstance(answer, AskFailed):
            who = f"Node {number}" if number in ready else str(address)
            status.problems.append(f"{who} doesn't answer: {answer}")
            if number in ready:
                status.nodes.append(Node(number, str(address), ready[number]))
            continue
        status.nodes.append(
            Node(
                answer.node_id,
                str(address),
                ready.get(answer.node_id, False),
                software=getattr(hello, "server_software", None),
                formats=(answer.lowest_format, answer.highest_format),
            )
        )
        answers[answer.node_id] = answer
        if not answer.is_connected:
            status.problems.append(f"Node {answer.node_id} has no connection to ZooKeeper.")
    for number, seen in enumerate(mine.journals):
        status.journals.append(_journal_of_nodes(number, seen, answers))
    # A node whose setting was changed last may be any of them.
    expected = [one.nodes_expected for one in (mine, *answers.values())]
    _note_problems(status, ready.keys(), max(expected))
    return status


def _journal_of_nodes(
    number: int, seen: m.DescribedJournal, answers: Mapping[int, m.DescribeJournalsResponse]
) -> Journal:
    """Return a journal as its leader tells of it, or else the node that was asked first."""
    by_node = {node: answer.journals[number] for node, answer in answers.items()}
    leading = by_node.get(seen.leader, seen)
    return Journal(
        journal=number,
        leader=None if leading.leader < 0 else leading.leader,
        epoch=leading.leader_epoch or None,
        since=time_of(leading.since_ms),
        last_entry=leading.last_entry,
        behind={
            node: max(0, leading.last_entry - one.last_entry)
            for node, one in sorted(by_node.items())
            if node != leading.leader
        },
        tail_entries=leading.tail_entries,
        tail_bytes=leading.tail_bytes,
        snapshot_entry=leading.snapshot_entry,
        snapshot_bytes=leading.snapshot_bytes,
        frozen=leading.is_frozen,
    )


# --- as it stands in ZooKeeper -------------------------------------------------------------


def from_zookeeper(visit: Visit, cluster_id: str, settings: Settings) -> Status:
    """Read it; no node is asked. *settings* are those of the cluster's nodes.

    Raises:
        EnsembleUnreachable: Nobody answers.
    """
    sessions: dict[int, int] = {}
    status = Status(cluster_id, [], [], state_bytes_limit=settings.cluster_state_max_bytes)
    for registration, session in _registered(visit):
        sessions[registration.node] = session
        status.nodes.append(
            Node(
                registration.node,
                ",".join(registration.endpoints),
                registration.is_ready,
                time_of(registration.timestamp_ms),
                formats=registration.formats,
            )
        )
    for number in range(settings.cluster_journals):
        status.journals.append(_journal_in_zookeeper(visit, number, sessions))
    _note_problems(status, sessions.keys(), settings.cluster_nodes)
    return status


def _registered(visit: Visit) -> Iterator[tuple[Registration, int]]:
    for node in sorted(_asked(visit, ListNodes()).value):
        reply = visit.ask(ReadNode(node))
        if reply.code is Code.OK and reply.value is not None:
            yield reply.value, reply.owner


def _journal_in_zookeeper(visit: Visit, number: int, sessions: Mapping[int, int]) -> Journal:
    read, snapshot = _asked(visit, ReadLeader(number)), _asked(visit, ReadSnapshot(number)).value
    leader: Leader | None = read.value
    entries: list[int] = []
    for first in _asked(visit, ListLog(number, None)).value:
        entries += _asked(visit, ListLog(number, first)).value or ()
    is_live = leader is not None and sessions.get(leader.node) == leader.session
    return Journal(
        journal=number,
        leader=leader.node if leader is not None and is_live else None,
        epoch=None if leader is None else leader.epoch,
        since=time_of(read.changed_ms) if leader is not None else None,
        last_entry=max(entries, default=0),
        behind=None,
        tail_entries=sum(entry > snapshot.index for entry in entries),
        tail_bytes=None,
        snapshot_entry=snapshot.index,
        snapshot_bytes=snapshot.size_bytes,
        frozen=leader is not None and leader.is_frozen,
    )


def _asked(visit: Visit, request: Request) -> Reply:
    """Return the answer to a request that reads."""
    reply = visit.ask(request)
    if reply.code is Code.GONE:
        raise ClusterGone(f"{reply.value} isn't there")
    if reply.code not in {Code.OK, Code.MISSING}:
        raise EnsembleUnreachable(f"ZooKeeper doesn't answer: {reply.code.name} {reply.value}")
    return reply


# --- for both ------------------------------------------------------------------------------


def _note_problems(status: Status, registered: Collection[int], expected: int) -> None:
    if expected > 0:
        status.nodes_expected = expected
    if len(registered) < expected:
        nodes = ", ".join(map(str, sorted(registered))) or "none"
        status.problems.append(
            f"Only {len(registered)} of {expected} nodes (cluster.nodes) are registered: {nodes}."
        )
    status.problems += [
        f"Node {node.node} is not ready: it doesn't follow every journal."
        for node in status.nodes
        if not node.ready
    ]
    frozen = [str(one.journal) for one in status.journals if one.frozen]
    if frozen:
        status.problems.append(f"Frozen, as the cluster was exported: journal {', '.join(frozen)}.")
    orphans = [str(j.journal) for j in status.journals if j.leader is None and not j.frozen]
    if orphans:
        status.problems.append(f"Nobody leads journal {', '.join(orphans)}.")
    used, limit = status.state_bytes, status.state_bytes_limit
    if used is not None and limit is not None and used >= limit:
        status.problems.append("New data is refused: cluster.state.max.bytes is reached.")


COLUMNS: Final = (
    "JOURNAL",
    "LEADER",
    "EPOCH",
    "SINCE",
    "LAST-ENTRY",
    "BEHIND",
    "TAIL-ENTRIES",
    "TAIL-BYTES",
    "SNAPSHOT-ENTRY",
    "SNAPSHOT-BYTES",
)


def show(status: Status, output: Output) -> bool:
    """Print it; return whether something is wrong."""
    for problem in status.problems:
        note(problem)
    if output.form == JSON:
        output.json(asdict(status))
        return bool(status.problems)
    size = ""
    if status.state_bytes is not None:
        size = f", and {status.state_bytes} of {status.state_bytes_limit} bytes"
    output.say(f"The cluster {status.cluster_id} has {counted(len(status.nodes), 'node')}{size}.")
    for node in status.nodes:
        output.say(", ".join(_said_of(node)))
    output.show(COLUMNS, [row_of(journal) for journal in status.journals])
    return bool(status.problems)


def _said_of(node: Node) -> Iterator[str]:
    yield f"Node {node.node} listens at {node.at}"
    yield "ready" if node.ready else "not ready"
    if node.since:
        yield f"since {node.since}"
    if node.software:
        yield node.software
    if node.formats:
        lowest, highest = node.formats
        yield f"format {lowest}" if lowest == highest else f"formats {lowest} to {highest}"


def row_of(journal: Journal) -> Sequence[object]:
    """Return what is shown of a journal under `COLUMNS`."""
    behind = journal.behind
    told = None if behind is None else " ".join(f"{node}:{by}" for node, by in behind.items())
    return (
        journal.journal,
        "frozen" if journal.frozen else journal.leader,
        journal.epoch,
        journal.since,
        journal.last_entry,
        told,
        journal.tail_entries,
        journal.tail_bytes,
        journal.snapshot_entry,
        journal.snapshot_bytes,
    )
