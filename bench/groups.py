"""Groups in one run: ``python -m bench.groups [--quick]``.

Rebalances, many members' heartbeats, memory over many rebalances, and the sticky assignor. As in
`bench.run`: the daemon on one core, the load on another one; here each row has a daemon of its
own, with an empty data folder.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from math import log
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import report
from bench.command import Benchmark, command
from bench.group_load import ENDURANCE, HEARTBEATS, REBALANCES, GroupPlan
from bench.measures import Aim, Medians, Samples, judge
from bench.processes import DAEMON_SETTINGS, LOAD_CORE, SERVER_CORE, daemon, run_json
from bench.report import HOW_TO_READ, SMOKE_NOTE, Run, aim_lines, markdown_table, number

_TIMEOUT_S: Final = 600


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


def _of(row: str, field: str) -> Callable[[Medians], float | None]:
    return lambda medians: medians.of(row, field)


def _milliseconds(row: str, field: str) -> Callable[[Medians], float | None]:
    def value(medians: Medians) -> float | None:
        seconds = medians.of(row, field)
        return None if seconds is None else seconds * 1000

    return value


def _at_most(
    name: str, title: str, value: Callable[[Medians], float | None], bound: float, unit: str
) -> Aim:
    return Aim(name, title, value, bound, at_least=False, unit=unit)


GROUP_AIMS: Final = (
    *(
        _at_most(
            f"kafka_{members}",
            f"server CPU of a rebalance of {members:,} members, Kafka's as the bound",
            _milliseconds(rebalance_row(members), "cpu_s"),
            bound * 1000,
            "ms",
        )
        for members, bound in KAFKA_CPU_S.items()
    ),
    _at_most(
        "growth_cpu",
        "growth of that CPU with the members, as an exponent",
        partial(growth, field="cpu_s"),
        1.1,
        "",
    ),
    _at_most(
        "growth_wall",
        "growth of the wall time, likewise",
        partial(growth, field="wall_s"),
        1.1,
        "",
    ),
    _at_most(
        "heartbeats",
        "server's share of a core with 20,000 members",
        _of("heartbeats_20000", "server_busy"),
        0.5,
        "",
    ),
    _at_most(
        "sticky_100",
        "sticky assignor, 100 members x 1,000 partitions",
        _of("sticky_100", "slowest_s"),
        0.1,
        "s",
    ),
    _at_most(
        "sticky_1000",
        "sticky assignor, 1,000 members x 10,000 partitions",
        _of("sticky_1000", "slowest_s"),
        3.0,
        "s",
    ),
    _at_most(
        "endurance",
        "growth of resident memory over 300 rebalances",
        _of("endurance", "grown_mb"),
        1.0,
        "MB",
    ),
)

TITLES: Final[Mapping[str, str]] = {
    **{row.name: row.title for row in GROUP_ROWS},
    **{row.name: row.title for row in ASSIGN_ROWS},
}


def document(run: Run) -> dict[str, Any]:
    """Return the whole run as what JSON can hold: samples, medians, aims."""
    judged = judge(Medians(run.samples), GROUP_AIMS)
    return report.document_of(run, TITLES.__getitem__, judged)


def rebalance_table(medians: Medians) -> list[tuple[str, ...]]:
    """Return the header and a line a group size."""
    lines: list[tuple[str, ...]] = [
        ("load", "CPU s", "(spread)", "Kafka's CPU s", "wall s", "slowest s", "CPU us per member")
    ]
    for size in SIZES:
        name = rebalance_row(size)
        spread = medians.spread(name, "cpu_s")
        lines.append(
            (
                TITLES[name],
                number(medians.of(name, "cpu_s"), 4),
                "" if spread is None else f"{spread[0]:.4f}-{spread[1]:.4f}",
                number(KAFKA_CPU_S.get(size), 2),
                number(medians.of(name, "wall_s"), 4),
                number(medians.of(name, "wall_max_s"), 4),
                number(medians.of(name, "cpu_us_per_member"), 1),
            )
        )
    return lines


def other_table(medians: Medians) -> list[tuple[str, ...]]:
    """Return the header and a line for each other number."""
    beats, endurance = "heartbeats_20000", "endurance"
    found: list[tuple[str, float | None, int]] = [
        ("heartbeats per second", medians.of(beats, "rate_per_s"), 0),
        ("their p50, ms", _thousandth(medians.of(beats, "p50_us")), 3),
        ("their p99, ms", _thousandth(medians.of(beats, "p99_us")), 3),
        ("of that the generator's own lateness, p99, ms", _late_ms(medians, beats), 3),
        ("the generator's share of a core, near 1 as it spins", medians.of(beats, "busy"), 2),
        ("server's share of a core", medians.of(beats, "server_busy"), 2),
        ("resident before 300 rebalances, MB", medians.of(endurance, "before_mb"), 1),
        ("after them, MB", medians.of(endurance, "after_mb"), 1),
    ]
    for row in ASSIGN_ROWS:
        found += [
            (f"{row.title}, first, s", medians.of(row.name, "first_s"), 3),
            ("after one left, s", medians.of(row.name, "left_s"), 3),
            ("after one came, s", medians.of(row.name, "came_s"), 3),
        ]
    return [("", "median"), *((title, number(value, digits)) for title, value, digits in found)]


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000


def _late_ms(medians: Medians, row: str) -> float | None:
    return _thousandth(medians.of(row, "late_p99_us"))


def failures(samples: Samples) -> list[str]:
    """Return what went wrong: such a run's numbers must not be used."""
    return report.failures(samples, TITLES.__getitem__)


def markdown(run: Run) -> str:
    """Return the page for people."""
    medians = Medians(run.samples)
    parts = [
        f"# Benchmark of groups: {run.name}",
        *([f"**{SMOKE_NOTE}**"] if run.quick else []),
        f"Run on {run.started}. Repeat it with `{run.repeat}`.",
        HOW_TO_READ,
        "## Aims",
        markdown_table(aim_lines(judge(medians, GROUP_AIMS))),
        "## Rebalances",
        markdown_table(rebalance_table(medians)),
        "## Heartbeats, memory, assignor",
        markdown_table(other_table(medians)),
        *[f"**Failed: {failure}**" for failure in failures(run.samples)],
        "## Environment",
        markdown_table([("", ""), *run.environment.items()]),
        "## Settings",
        markdown_table([("", ""), *((k, str(v)) for k, v in run.settings.items())]),
    ]
    return "\n\n".join(parts) + "\n"


class GroupBench:
    """One run; collects samples by row."""

    def __init__(self, folder: Path, *, quick: bool, pinned: bool) -> None:
        self._folder = folder
        self._quick = quick
        self._server_core = SERVER_CORE if pinned else None
        self._load_core = LOAD_CORE if pinned else None
        self.samples: dict[str, list[dict[str, float | None]]] = {}
        self.about: Mapping[str, str] = {}

    def repetition(self, number: int) -> None:
        """Measure all rows once.

        Raises:
            ProcessError: A process failed.
        """
        for row in GROUP_ROWS:
            self._keep(row.name, self._group(row, f"{number}-{row.name}"))
        for assigned in ASSIGN_ROWS:
            self._keep(assigned.name, self._assign(assigned))

    def _keep(self, name: str, sample: dict[str, Any]) -> None:
        self.samples.setdefault(name, []).append(sample)

    def _group(self, row: GroupRow, run: str) -> dict[str, Any]:
        with daemon(self._folder / run, self._server_core) as server:
            changes = {**row.plan, **(row.quick if self._quick else {})}
            plan = GroupPlan(host=server.host, port=server.port, server_pid=server.pid, **changes)
            module = ["bench.group_load", json.dumps(asdict(plan))]
            return run_json(module, core=self._load_core, timeout_s=_TIMEOUT_S)

    def _assign(self, row: AssignRow) -> dict[str, Any]:
        members, partitions = row.quick if self._quick else (row.members, row.partitions)
        module = ["bench.assigning", str(members), str(partitions)]
        return run_json(module, core=self._load_core, timeout_s=_TIMEOUT_S)


def _tables(run: Run) -> tuple[list[tuple[str, ...]], ...]:
    medians = Medians(run.samples)
    return (
        rebalance_table(medians),
        other_table(medians),
        aim_lines(judge(medians, GROUP_AIMS)),
    )


main = command(
    Benchmark(
        module="bench.groups",
        help="Measure large and many groups, and the sticky assignor, and write the results.\n\n"
        "Exit status 1: something failed, or an answer was wrong. A missed aim is no failure.",
        name="groups",
        quick_name="groups-quick",
        repetitions=3,
        make=lambda folder, choice: nullcontext(
            GroupBench(folder, quick=choice.quick, pinned=choice.pinned)
        ),
        settings=lambda _quick: {
            "daemon": "defaults, " + ", ".join(DAEMON_SETTINGS),
            "durability": "fdatasync before every acknowledgement",
        },
        document=document,
        markdown=markdown,
        tables=_tables,
        failures=failures,
    )
)


if __name__ == "__main__":
    main()
