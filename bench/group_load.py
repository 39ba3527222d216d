"""Groups of many members, driven from one process: a process of its own, on a core of its own.

    python -m bench.group_load '{"workload": "rebalances", "host": "127.0.0.1", "port": 9310, …}'

prints one line of JSON. The argument is a `GroupPlan`. Members share connections, as many to one
as the plan says; requests of a phase are encoded before its clock starts, go out at once, and
their answers are decoded and judged after the clock has stopped.
"""

import gc
import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import msgpack

from bench.dialects import HEARTBEAT, Exchange
from bench.load import Connection, Generator, Plan, allow_descriptors
from bench.measures import NS_PER_S
from bench.processes import LoadError, cpu_ns, resident_mb, run_plan
from bench.talk import (
    BODY_AT,
    CORRELATION_AT,
    AnswerReader,
    Talk,
    accepted,
    ask,
    connect,
    decoded,
    encoded,
    exchange,
)
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


def _connected(plan: GroupPlan) -> list[Talk]:
    """Return connections that have said hello: one that says nothing at first is closed."""
    allow_descriptors(plan.connections + 64)
    talks = [connect(plan.host, plan.port) for _ in range(plan.connections)]
    accepted(ask(talks, [ApiVersionsRequest("bench", "bench", "1")] * len(talks)))
    return talks


class BenchGroup:
    """A group all of whose members are here. Between its methods it is stable."""

    def __init__(self, talks: Sequence[Talk], name: str) -> None:
        self._talks = talks
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
        new = ask(self._talks, [self._join("")] * count)
        accepted(new, ErrorCode.MEMBER_ID_REQUIRED)
        self.members += [answer.member_id for answer in new]
        joined = ask(self._talks, [self._join(member_id) for member_id in self.members])
        accepted(joined)
        self._leader, self.generation = joined[0].leader, joined[0].generation_id
        accepted(ask(self._talks, self._syncs(self.generation)))

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
        phases = [encoded(requests) for requests in ([leave], joins, syncs)]
        answers: list[list[bytes]] = []

        def rebalance() -> None:
            answers.extend(exchange(self._talks, frames) for frames in phases)

        if timed is None:
            rebalance()
        else:
            timed(rebalance)
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


def _share(number: int) -> bytes:
    """Return the bytes that give one member a partition of its own."""
    return encode_assignment(Assignment((TopicPartition(_TOPIC, number),)))


def rebalances(plan: GroupPlan) -> dict[str, float | None]:
    """Measure rebalances of one group, each after one member left."""
    group = BenchGroup(_connected(plan), "bench-rebalances")
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
    group = BenchGroup(_connected(plan), "bench-endurance")
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
        "grown_mb": after - before,
    }


def heartbeats(plan: GroupPlan) -> dict[str, float | None]:
    """Measure an open loop of heartbeats, every member at its interval."""
    talks = _connected(plan)
    requests: list[Request] = []
    for number in range(plan.groups):
        group = BenchGroup(talks, f"bench-heartbeats-{number}")
        group.come(plan.members)
        requests += group.heartbeats()
    total = len(requests)
    epoll = select.epoll()
    connections = []
    for number, talk in enumerate(talks):
        frames = encoded(requests[number :: len(talks)])
        exchanges = [Exchange(frame, answer=_ALIVE) for frame in frames]
        answers = [_ALIVE] * len(exchanges)
        reader = AnswerReader(slot_at=CORRELATION_AT, answer_from=BODY_AT, answers=answers)
        connections.append(Connection(talk.sock, epoll, reader, exchanges))
    warmup_s = min(1.0, plan.duration_s / 2)
    load = Plan(
        host=plan.host,
        port=plan.port,
        dialect="coordinator",
        workload=HEARTBEAT,
        connections=plan.connections,
        window=total // plan.connections,
        partitions=1,
        window_s=warmup_s / 3,
        warmup_s=warmup_s,
        duration_s=plan.duration_s,
        run="groups",
        rate_per_s=total / plan.interval_s,
        server_pids=(plan.server_pid,),
    )
    measured = Generator(load, connections, epoll).run()
    return {"members": total, "groups": plan.groups, **measured}


def churn(plan: GroupPlan) -> dict[str, float | None]:
    """Let a member leave a group or come to it, at each interval, until the input ends."""
    talks = _connected(plan)
    # Many such processes may follow one another on a daemon.
    groups = [BenchGroup(talks, f"bench-churn-{os.getpid()}-{n}") for n in range(plan.groups)]
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


if __name__ == "__main__":
    run_plan("bench.group_load", GroupPlan, lambda plan: _WORKLOADS[plan.workload](plan))
