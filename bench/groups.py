"""Groups in one run: ``python -m bench.groups [--quick]``.

Rebalances, many members' heartbeats, memory over many rebalances, and the sticky assignor. As in
`bench.run`: the daemon on one core, the load on another one; here each row has a daemon of its
own, with an empty data folder.
"""

from collections.abc import Mapping
from functools import partial
from math import log
from typing import Any, Final, NamedTuple

from bench.command import Bench, Benchmark, command
from bench.group_load import ENDURANCE, HEARTBEATS, REBALANCES, GroupPlan
from bench.measures import Aim, Medians, Samples, at_most, field_at_most
from bench.processes import DAEMON_NOTES, daemon, run_json
from bench.report import Table, between, fields_table, number


class GroupRow(NamedTuple):
    """One load on a daemon of its own.

    Attributes:
        quick: What a smoke run does instead, as changes of ``plan``.
    """

    name: str
    title: str
    plan: Mapping[str, Any]
    quick: Mapping[str, Any]


class AssignRow(NamedTuple):
    """One run of the sticky assignor."""

    name: str
    title: str
    members: int
    partitions: int
    quick: tuple[int, int]


# Group size -> how many rebalances are measured; small groups need more to be told from noise.
SIZES: Final[Mapping[int, int]] = {10: 50, 100: 30, 1_000: 9, 4_000: 5, 5_000: 5}
# CPU seconds of one rebalance that Kafka 4.1 was measured with, by group size.
KAFKA_CPU_S: Final[Mapping[int, float]] = {100: 0.03, 1_000: 0.2, 4_000: 0.5}
_QUICK_SIZES: Final = {10: 5, 100: 10, 1_000: 20, 4_000: 30, 5_000: 40}
_CONNECTIONS: Final = 50


def rebalance_row(members: int) -> str:
    """Return the name of the row of groups of this size."""
    return f"rebalance_{members}"


GROUP_ROWS: Final = (
    *(
        GroupRow(
            rebalance_row(members),
            f"rebalance of {members:,} members",
            {
                "workload": REBALANCES,
                "members": members,
                "connections": min(members, _CONNECTIONS),
                "rounds": rounds,
                "warmup_rounds": 2,
            },
            {"members": _QUICK_SIZES[members], "connections": 5, "rounds": 2, "warmup_rounds": 1},
        )
        for members, rounds in SIZES.items()
    ),
    GroupRow(
        "heartbeats_20000",
        "20,000 members in 1,000 groups, a heartbeat every 3 s, 200 connections",
        {
            "workload": HEARTBEATS,
            "members": 20,
            "groups": 1_000,
            "connections": 200,
            "interval_s": 3.0,
            "duration_s": 30.0,
        },
        {"groups": 5, "connections": 4, "interval_s": 0.5, "duration_s": 0.5},
    ),
    GroupRow(
        "endurance",
        "300 consecutive rebalances of 100 members, after 100 of warm-up",
        {
            "workload": ENDURANCE,
            "members": 100,
            "connections": _CONNECTIONS,
            "rounds": 300,
            "warmup_rounds": 100,
        },
        {"members": 5, "connections": 5, "rounds": 10, "warmup_rounds": 4},
    ),
)

ASSIGN_ROWS: Final = (
    AssignRow("sticky_100", "sticky assignor, 100 x 1,000", 100, 1_000, (5, 50)),
    AssignRow("sticky_1000", "sticky assignor, 1,000 x 10,000", 1_000, 10_000, (10, 100)),
)


def growth(medians: Medians, field: str) -> float | None:
    """Return the exponent with which *field* grows with the group: 1 is linear.

    The slope of the least-squares line through the logarithms, over all sizes.
    """
    points = []
    for size in SIZES:
        members = medians.of(rebalance_row(size), "members")
        value = medians.of(rebalance_row(size), field)
        if members is None or not value:
            return None
        points.append((log(members), log(value)))
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    above = sum((x - middle_x) * (y - middle_y) for x, y in points)
    return above / sum((x - middle_x) ** 2 for x, _ in points)


def _cpu_aim(members: int, bound_s: float) -> Aim:
    def value(medians: Medians) -> float | None:
        seconds = medians.of(rebalance_row(members), "cpu_s")
        return None if seconds is None else seconds * 1000

    title = f"server CPU of a rebalance of {members:,} members, Kafka's as the bound"
    return at_most(f"kafka_{members}", title, value, bound_s * 1000, "ms")


_BEATS, _ENDURANCE = "heartbeats_20000", "endurance"
_AIMS: Final = (
    *(_cpu_aim(members, bound_s) for members, bound_s in KAFKA_CPU_S.items()),
    at_most(
        "growth_cpu",
        "growth of that CPU with the members, as an exponent",
        partial(growth, field="cpu_s"),
        1.1,
    ),
    at_most(
        "growth_wall", "growth of the wall time, likewise", partial(growth, field="wall_s"), 1.1
    ),
    field_at_most(_BEATS, "server_busy", "server's share of a core with 20,000 members", 0.5),
    field_at_most(
        "sticky_100", "slowest_s", "sticky assignor, 100 members x 1,000 partitions", 0.1, "s"
    ),
    field_at_most(
        "sticky_1000", "slowest_s", "sticky assignor, 1,000 members x 10,000 partitions", 3.0, "s"
    ),
    field_at_most(
        _ENDURANCE, "grown_mb", "growth of resident memory over 300 rebalances", 1.0, "MB"
    ),
)


# --- results -------------------------------------------------------------------------------------

_TITLES: Final = {
    **{row.name: row.title for row in GROUP_ROWS},
    **{row.name: row.title for row in ASSIGN_ROWS},
}
# What isn't about rebalances: row, field, unit and digits.
_OTHER: Final = (
    (_BEATS, "rate_per_s", "heartbeats per second", 0),
    (_BEATS, "p50_us", "us, p50", 0),
    (_BEATS, "p99_us", "us, p99", 0),
    (_BEATS, "late_p99_us", "us of it that the generator itself was late, p99", 0),
    (_BEATS, "busy", "the generator's share of a core, near 1 as it spins", 2),
    (_BEATS, "server_busy", "server's share of a core", 2),
    (_ENDURANCE, "before_mb", "MB resident before", 1),
    (_ENDURANCE, "after_mb", "MB resident after", 1),
    *(
        (row.name, field, what, 3)
        for row in ASSIGN_ROWS
        for field, what in (
            *(("first_s", "s, first"), ("left_s", "s after one left")),
            ("came_s", "s after one came"),
        )
    ),
)


def _tables(samples: Samples) -> Mapping[str, Table]:
    medians = Medians(samples)
    return {
        "Rebalances": _rebalance_table(medians),
        "Heartbeats, memory, assignor": fields_table(medians, _TITLES, _OTHER),
    }


def _rebalance_table(medians: Medians) -> Table:
    """Return a line a group size."""
    lines: Table = [
        ("load", "CPU s", "(spread)", "Kafka's CPU s", "wall s", "slowest s", "CPU us per member")
    ]
    for size in SIZES:
        name = rebalance_row(size)
        lines.append(
            (
                *(_TITLES[name], number(medians.of(name, "cpu_s"), 4)),
                between(medians.spread(name, "cpu_s"), 4),
                number(KAFKA_CPU_S.get(size), 2),
                *(number(medians.of(name, field), 4) for field in ("wall_s", "wall_max_s")),
                number(medians.of(name, "cpu_us_per_member"), 1),
            )
        )
    return lines


class GroupBench(Bench):
    """Each row has a daemon of its own."""

    def repetition(self, number: int) -> None:
        """Measure all rows once.

        Raises:
            ProcessError: A process failed.
        """
        quick, cores = self.choice.quick, self.choice.cores
        for row in GROUP_ROWS:
            with daemon(self.folder / f"{number}-{row.name}", cores.server) as server:
                changes = {**row.plan, **(row.quick if quick else {})}
                plan = GroupPlan(
                    host=server.host, port=server.port, server_pid=server.pid, **changes
                )
                self.keep(row.name, run_json("bench.group_load", plan, core=cores.load))
        for assigned in ASSIGN_ROWS:
            size = assigned.quick if quick else (assigned.members, assigned.partitions)
            self.keep(assigned.name, run_json("bench.assigning", *size, core=cores.load))


main = command(
    Benchmark(
        module="bench.groups",
        help="Measure large and many groups, and the sticky assignor, and write the results.",
        name="groups",
        repetitions=3,
        make=GroupBench,
        settings=lambda _quick: DAEMON_NOTES,
        titles=_TITLES,
        aims=_AIMS,
        tables=_tables,
    )
)


if __name__ == "__main__":
    main()
