"""Groups of many members, driven from one process: a process of its own, on a core of its own.

    python -m bench.group_load '{"workload": "rebalances", "host": "127.0.0.1", "port": 9310, …}'

prints one line of JSON. The argument is a `GroupPlan`. Members share connections, as many to one
as the plan says; requests of a phase are encoded before its clock starts, go out at once, and
their answers are decoded and judged after the clock has stopped.
"""

import gc
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from struct import Struct
from typing import Any, Final

import msgpack

from bench.dialects import (
    RESPONSE_BODY_AT,
    RESPONSE_CORRELATION_AT,
    AnswerReader,
    Exchange,
    response_in,
    split_frames,
    with_correlation,
)
from bench.load import Connection, Generator, LoadError, Plan, allow_descriptors
from bench.measures import NS_PER_S, latency_of, median, percentile
from bench.processes import cpu_ns, resident_mb
from protocol.connection import ClientConnection
from protocol.consumer import Assignment, Subscription, encode_assignment, encode_subscription
from protocol.errors import ErrorCode
from protocol.messages import (
    ApiVersionsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinProtocol,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    Request,
    SyncGroupRequest,
)
from protocol.partition import TopicPartition

REBALANCES: Final = "rebalances"
HEARTBEATS: Final = "heartbeats"
ENDURANCE: Final = "endurance"
CHURN: Final = "churn"

_SETTLE_S: Final = 0.05
_SESSION_MS: Final = 1_800_000
_TOPIC: Final = "flights"


_READ_BYTES: Final = 1 << 18
_ANSWER_S: Final = 120
_HEAD: Final = Struct(">Ii")
_ALIVE: Final = msgpack.packb((0, None))  # A heartbeat's answer of version 1.


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What to do.

    Attributes:
        workload: ``rebalances`` (one leaves, all others rebalance; then one comes, unmeasured),
            ``heartbeats`` (open loop), ``endurance`` (resident memory over many rebalances), or
            ``churn`` (rebalances at a fixed rate, until the input ends).
        members: Of each group.
        rounds: Rebalances to measure, each with one member less than ``members``.
        warmup_rounds: Rebalances before them.
        interval_s: Between two heartbeats of a member, or two rebalances of any group.
    """

    workload: str
    host: str
    port: int
    server_pid: int
    members: int
    connections: int
    groups: int = 1
    rounds: int = 1
    warmup_rounds: int = 0
    interval_s: float = 3.0
    duration_s: float = 1.0


class _Talk:
    """What is on its way on one connection."""

    __slots__ = ("_rest", "_sock", "_unsent")

    def __init__(self, sock: socket.socket, unsent: bytearray) -> None:
        self._sock = sock
        self._unsent = unsent
        self._rest = b""

    def sent_all(self) -> bool:
        """Send what the socket takes, and return whether that was all."""
        del self._unsent[: self._sock.send(self._unsent)]
        return not self._unsent

    def frames(self) -> list[bytes]:
        """Return the frames that what was read completes."""
        data = self._sock.recv(_READ_BYTES)
        if not data:
            raise LoadError("the server closed a connection under load")
        whole, self._rest = split_frames(self._rest + data)
        return whole


class Wires:
    """Connections that carry many requests at once, and never block in either direction."""

    def __init__(self, host: str, port: int, connections: int) -> None:
        allow_descriptors(connections + 64)
        self.epoll = select.epoll()
        self.socks: list[socket.socket] = []
        for _ in range(connections):
            sock = socket.create_connection((host, port), timeout=_ANSWER_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            self.socks.append(sock)
        # A connection that says nothing at first is closed, and not all are needed at once.
        accepted(self.ask([ApiVersionsRequest("bench", "bench", "1")] * connections))

    def exchange(self, frames: Sequence[bytes]) -> list[bytes]:
        """Send frame n, which has the correlation id n, on connection n modulo their number.

        Returns:
            The frame of the answer to each.

        Raises:
            LoadError: A connection was closed, or the answers took too long.
        """
        step = len(self.socks)
        talks = {
            sock.fileno(): _Talk(sock, bytearray().join(frames[n::step]))
            for n, sock in enumerate(self.socks[: len(frames)])
        }
        for fd in talks:
            self.epoll.register(fd, select.EPOLLIN | select.EPOLLOUT)
        answers: dict[int, bytes] = {}
        deadline = time.monotonic() + _ANSWER_S
        while len(answers) < len(frames):
            if time.monotonic() > deadline:
                raise LoadError(f"{len(frames) - len(answers)} of {len(frames)} without an answer")
            for fd, mask in self.epoll.poll(1):
                if mask & select.EPOLLOUT and talks[fd].sent_all():
                    self.epoll.modify(fd, select.EPOLLIN)
                if mask & ~select.EPOLLOUT:
                    for frame in talks[fd].frames():
                        answers[_HEAD.unpack_from(frame)[1]] = frame
        for fd in talks:
            self.epoll.unregister(fd)
        return [answers[n] for n in range(len(frames))]

    def ask(self, requests: Sequence[Request]) -> list[Any]:
        """Return the decoded answers."""
        frames = [encoded(request, number) for number, request in enumerate(requests)]
        return decoded(requests, self.exchange(frames))


def encoded(request: Request, correlation_id: int) -> bytes:
    """Return the frame of *request* in its newest version."""
    _, frame = ClientConnection().send(request)
    return with_correlation(frame, correlation_id)


def decoded(requests: Sequence[Request], answers: Sequence[bytes]) -> list[Any]:
    """Return the answers in these frames.

    Raises:
        RemoteProtocolError: One is none.
    """
    return [response_in(answer, to=r) for r, answer in zip(requests, answers, strict=True)]


def accepted(answers: Sequence[Any], *allowed: int) -> None:
    """Raise `LoadError` unless every answer has an allowed error; 0 if none is named."""
    wrong = [answer for answer in answers if answer.error not in (allowed or (0,))]
    if wrong:
        raise LoadError(f"{len(wrong)} of {len(answers)} refused, the first with {wrong[0]!r}")


class BenchGroup:
    """A group all of whose members are here. Between its methods it is stable."""

    def __init__(self, wires: Wires, name: str) -> None:
        self._wires = wires
        self._name = name
        self.members: list[str] = []
        self.generation = 0
        self._leader = ""
        self._metadata = b""

    def come(self, count: int) -> None:
        """Let so many new members join, and everybody rebalance.

        The very first one comes alone: without an initial delay it would have a generation to
        itself, before the others are in.
        """
        if not self.members and count > 1:
            self.come(1)
            count -= 1
        # New metadata: unchanged, a follower that asks before the new ones are in would be told
        # the old generation at once.
        self._metadata = encode_subscription(Subscription((_TOPIC,), b"%08d" % self.generation))
        new = self._wires.ask([self._join("")] * count)
        accepted(new, ErrorCode.MEMBER_ID_REQUIRED)
        self.members += [answer.member_id for answer in new]
        joins: list[Request] = [self._join(member_id) for member_id in self.members]
        joined = self._wires.ask(joins)
        accepted(joined)
        self._leader, self.generation = joined[0].leader, joined[0].generation_id
        syncs = self._syncs(self.generation)
        accepted(decoded(syncs, self._wires.exchange(_frames(syncs))))

    def leave(self, timed: Callable[[Callable[[], None]], None] | None = None) -> None:
        """Let one member leave that doesn't lead, and all others join and sync; *timed* runs that.

        Raises:
            LoadError: The server did not answer as a healthy group's does.
        """
        leaver = next(m for m in reversed(self.members) if m != self._leader)
        self.members.remove(leaver)
        leave = LeaveGroupRequest(self._name, (LeavingMember(leaver, None, "bench"),))
        joins: list[Request] = [self._join(member_id) for member_id in self.members]
        # The leader stays, and the generation is the next one: both are judged below.
        syncs = self._syncs(self.generation + 1)
        goodbye, join_frames, sync_frames = encoded(leave, 0), _frames(joins), _frames(syncs)
        answers: list[list[bytes]] = []

        def rebalance() -> None:
            answers.extend(
                self._wires.exchange(part) for part in ([goodbye], join_frames, sync_frames)
            )

        (timed or _at_once)(rebalance)
        accepted(decoded([leave], answers[0]))
        joined = decoded(joins, answers[1])
        accepted(joined)
        self.generation += 1
        if {(j.generation_id, j.leader) for j in joined} != {(self.generation, self._leader)}:
            raise LoadError("a member was told another generation or leader")
        synced = decoded(syncs, answers[2])
        accepted(synced)
        if [s.assignment for s in synced] != [_share(n) for n in range(len(self.members))]:
            raise LoadError("a member got another assignment than the leader's")

    def heartbeats(self) -> list[HeartbeatRequest]:
        """Return the heartbeat of each member."""
        return [HeartbeatRequest(self._name, self.generation, m, None) for m in self.members]

    def _join(self, member_id: str) -> JoinGroupRequest:
        protocols = (JoinProtocol("range", self._metadata),)
        return JoinGroupRequest(
            self._name, _SESSION_MS, _SESSION_MS, member_id, None, "consumer", protocols, None
        )

    def _syncs(self, generation: int) -> list[Request]:
        shares = tuple(MemberAssignment(m, _share(n)) for n, m in enumerate(self.members))
        return [
            SyncGroupRequest(
                self._name,
                generation,
                member_id,
                None,
                "consumer",
                "range",
                shares if member_id == self._leader else (),
            )
            for member_id in self.members
        ]


def _frames(requests: Sequence[Request]) -> list[bytes]:
    return [encoded(request, number) for number, request in enumerate(requests)]


def _at_once(run: Callable[[], None]) -> None:
    run()


def _share(number: int) -> bytes:
    """Return the bytes that give one member a partition of its own."""
    return encode_assignment(Assignment((TopicPartition(_TOPIC, number),)))


def rebalances(plan: GroupPlan) -> dict[str, float | None]:
    """Measure rebalances of one group, each after one member left."""
    group = BenchGroup(Wires(plan.host, plan.port, plan.connections), "bench-rebalances")
    group.come(plan.members)
    wall_s: list[float] = []
    cpu_s: list[float] = []

    def timed(run: Callable[[], None]) -> None:
        cpu, began = cpu_ns(plan.server_pid), time.perf_counter_ns()
        run()
        wall_s.append((time.perf_counter_ns() - began) / NS_PER_S)
        time.sleep(_SETTLE_S)  # What the server does behind its last answer counts too.
        cpu_s.append((cpu_ns(plan.server_pid) - cpu) / NS_PER_S)

    for number in range(plan.warmup_rounds + plan.rounds):
        gc.collect()
        gc.disable()
        group.leave(timed if number >= plan.warmup_rounds else None)
        gc.enable()
        group.come(1)
    return {
        "members": plan.members,
        "rebalances": plan.rounds,
        "cpu_s": median(cpu_s),
        "wall_s": median(wall_s),
        "wall_max_s": max(wall_s),
        "cpu_us_per_member": median(cpu_s) * 1e6 / (plan.members - 1),
    }


def endurance(plan: GroupPlan) -> dict[str, float | None]:
    """Measure the server's resident memory before and after many rebalances of one group."""
    group = BenchGroup(Wires(plan.host, plan.port, plan.connections), "bench-endurance")
    group.come(plan.members)

    def run(rounds: int) -> None:
        for _ in range(rounds // 2):
            group.leave()
            group.come(1)

    run(plan.warmup_rounds)
    before = resident_mb(plan.server_pid)
    run(plan.rounds)
    after = resident_mb(plan.server_pid)
    return {
        "members": plan.members,
        "rebalances": plan.rounds,
        "before_mb": before,
        "after_mb": after,
        "grown_mb": None if before is None or after is None else after - before,
    }


def heartbeats(plan: GroupPlan) -> dict[str, float | None]:
    """Measure an open loop of heartbeats, every member at its interval."""
    wires = Wires(plan.host, plan.port, plan.connections)
    requests: list[HeartbeatRequest] = []
    for number in range(plan.groups):
        group = BenchGroup(wires, f"bench-heartbeats-{number}")
        group.come(plan.members)
        requests += group.heartbeats()
    total = len(requests)
    epoll = select.epoll()
    connections = []
    for number, sock in enumerate(wires.socks):
        mine = requests[number :: len(wires.socks)]
        exchanges = [Exchange(encoded(r, slot), answer=_ALIVE) for slot, r in enumerate(mine)]
        answers = [exchange.answer for exchange in exchanges]
        reader = AnswerReader(
            slot_at=RESPONSE_CORRELATION_AT, answer_from=RESPONSE_BODY_AT, answers=answers
        )
        connections.append(Connection(sock, epoll, reader, exchanges))
    load = Plan(
        host=plan.host,
        port=plan.port,
        dialect="coordinator",
        workload="heartbeat",
        connections=plan.connections,
        window=total // plan.connections,
        partitions=1,
        window_s=min(1.0, plan.duration_s / 2) / 3,
        warmup_s=min(1.0, plan.duration_s / 2),
        duration_s=plan.duration_s,
        run="groups",
        rate_per_s=total / plan.interval_s,
        server_pid=plan.server_pid,
    )
    generator = Generator(load, connections, epoll)
    gc.collect()
    gc.disable()
    seconds, busy_s, server_s = generator.run()
    gc.enable()
    latency = latency_of(generator.latencies_ns)
    return {
        "members": total,
        "groups": plan.groups,
        "requests": generator.measured,
        "rate_per_s": generator.measured / seconds,
        "server_busy": None if server_s is None else server_s / seconds,
        "p50_us": latency.p50_us,
        "p99_us": latency.p99_us,
        "max_us": latency.max_us,
        "busy": busy_s / seconds,
        "late_p99_us": percentile(sorted(generator.late_ns), 0.99) / 1000,
        "wrong": sum(connection.reader.wrong for connection in connections),
        "unanswered": generator.unanswered,
    }


def churn(plan: GroupPlan) -> dict[str, float | None]:
    """Let a member leave a group or come to it, at each interval, until the input ends."""
    wires = Wires(plan.host, plan.port, plan.connections)
    # Many such processes may follow one another on a daemon.
    groups = [BenchGroup(wires, f"bench-churn-{os.getpid()}-{n}") for n in range(plan.groups)]
    for group in groups:
        group.come(plan.members)
    print("all members are here", flush=True)
    began_s = time.monotonic()
    rebalances = 0
    while True:
        wait_s = began_s + rebalances * plan.interval_s - time.monotonic()
        if select.select([sys.stdin], [], [], max(wait_s, 0.0))[0]:
            break
        group = groups[rebalances // 2 % len(groups)]
        if rebalances % 2:
            group.come(1)
        else:
            group.leave()
        rebalances += 1
    return {"rebalances_per_s": rebalances / (time.monotonic() - began_s)}


_WORKLOADS: Final[Mapping[str, Callable[[GroupPlan], dict[str, float | None]]]] = {
    REBALANCES: rebalances,
    HEARTBEATS: heartbeats,
    ENDURANCE: endurance,
    CHURN: churn,
}


def main() -> int:
    """Run the plan of the command line."""
    plan = GroupPlan(**json.loads(sys.argv[1]))
    try:
        measured = _WORKLOADS[plan.workload](plan)
    except (LoadError, OSError, ValueError) as exc:
        print(f"bench.group_load: {exc}; the plan was {asdict(plan)}", file=sys.stderr)
        return 1
    print(json.dumps(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
