"""Groups in one run: ``python -m bench.groups [--quick]``.

Rebalances, many members' heartbeats, memory over many rebalances, and the sticky assignor. As in
`bench.run`: the daemon on one core, the load on another one; here each row has a daemon of its
own, with an empty data folder.
"""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench import group_rows
from bench.command import Benchmark, command
from bench.group_load import GroupPlan
from bench.group_rows import ASSIGN_ROWS, GROUP_AIMS, GROUP_ROWS, AssignRow, GroupRow
from bench.judging import Medians, judge
from bench.processes import LOAD_CORE, SERVER_CORE, run_json, serving
from bench.report import Run, aim_lines

_TIMEOUT_S: Final = 600
# The first member of each group need not wait for others; a machine's disk may be nearly full,
# which is not what this is about.
_DAEMON_SETTINGS: Final = ("group.initial.rebalance.delay.ms=0", "storage.reserve.bytes=0")


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
        arguments = ["serve", "--listen", "127.0.0.1:0", "--data-dir", str(self._folder / run)]
        for setting in _DAEMON_SETTINGS:
            arguments += ["--set", setting]
        with serving(
            ["coordinator", *arguments],
            output=self._folder / f"{run}.log",
            core=self._server_core,
            graceful=True,
        ) as daemon:
            changes = {**row.plan, **(row.quick if self._quick else {})}
            plan = GroupPlan(host=daemon.host, port=daemon.port, server_pid=daemon.pid, **changes)
            module = ["bench.group_load", json.dumps(asdict(plan))]
            return run_json(module, core=self._load_core, timeout_s=_TIMEOUT_S)

    def _assign(self, row: AssignRow) -> dict[str, Any]:
        members, partitions = row.quick if self._quick else (row.members, row.partitions)
        module = ["bench.assigning", str(members), str(partitions)]
        return run_json(module, core=self._load_core, timeout_s=_TIMEOUT_S)


def _tables(run: Run) -> tuple[list[tuple[str, ...]], ...]:
    medians = Medians(run.samples)
    return (
        group_rows.rebalance_table(medians),
        group_rows.other_table(medians),
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
            "daemon": "defaults, " + ", ".join(_DAEMON_SETTINGS),
            "durability": "fdatasync before every acknowledgement",
        },
        document=group_rows.document,
        markdown=group_rows.markdown,
        tables=_tables,
        failures=group_rows.failures,
    )
)


if __name__ == "__main__":
    main()
