"""Groups in one run: ``python -m bench.groups [--quick]``.

Rebalances, many members' heartbeats, memory over many rebalances, and the sticky assignor. As in
`bench.run`: the daemon on one core, the load on another one; here each row has a daemon of its
own, with an empty data folder.
"""

import json
import os
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from bench import group_rows, report
from bench.environment import environment, is_memory
from bench.group_load import GroupPlan
from bench.group_rows import ASSIGN_ROWS, GROUP_AIMS, GROUP_ROWS, AssignRow, GroupRow
from bench.processes import (
    LOAD_CORE,
    SERVER_CORE,
    ProcessError,
    cores_of_this_machine,
    run_json,
    serving,
)
from bench.rows import Medians, judge

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


def _write(run: report.Run, results: Path) -> None:
    results.mkdir(parents=True, exist_ok=True)
    content = json.dumps(group_rows.document(run), indent=1)
    (results / f"{run.name}.json").write_text(content + "\n", encoding="utf-8")
    (results / f"{run.name}.md").write_text(group_rows.markdown(run), encoding="utf-8")


def _show(run: report.Run) -> None:
    medians = Medians(run.samples)
    for lines in (
        group_rows.rebalance_table(medians),
        group_rows.other_table(medians),
        report.aim_lines(judge(medians, GROUP_AIMS)),
    ):
        print(f"\n{report.text(lines)}")
    if run.quick:
        print(f"\n{report.SMOKE_NOTE}")


@click.command()
@click.option("--quick", is_flag=True, help="One small repetition (also QUICK=1): a smoke test.")
@click.option("--name", help="Name of the result files  [default: groups, or groups-quick]")
@click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where they go  [default: bench/results, or build/bench for a quick run]",
)
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/bench"),
    show_default=True,
    help="On the disk to be measured; data folders come and go in it.",
)
@click.option("--repetitions", type=click.IntRange(1), help="How many  [default: 3, quick 1]")
def main(
    quick: bool, name: str | None, results: Path | None, work_dir: Path, repetitions: int | None
) -> None:
    """Measure large and many groups, and the sticky assignor, and write the results.

    Exit status 1: something failed, or an answer was wrong. A missed aim is no failure.
    """
    quick = quick or os.environ.get("QUICK", "") not in {"", "0"}
    results = results or (work_dir if quick else Path("bench/results"))
    work_dir.mkdir(parents=True, exist_ok=True)
    try:
        run = _measure(
            name or ("groups-quick" if quick else "groups"),
            work_dir,
            repetitions=repetitions or (1 if quick else 3),
            quick=quick,
        )
    except ProcessError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        sys.exit(1)
    _write(run, results)
    _show(run)
    failed = group_rows.failures(run.samples)
    for failure in failed:
        print(f"FAILED: {failure}", file=sys.stderr)
    sys.exit(1 if failed else 0)


def _measure(name: str, work_dir: Path, *, repetitions: int, quick: bool) -> report.Run:
    cores = cores_of_this_machine()
    print(f"cores: {cores.note}")
    if is_memory(work_dir):
        print("The work folder is in memory: nothing durable is measured. Choose --work-dir.")
    about = environment(work_dir)
    started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    with tempfile.TemporaryDirectory(prefix="groups-", dir=work_dir) as folder:
        bench = GroupBench(Path(folder), quick=quick, pinned=cores.pinned)
        for number in range(1, repetitions + 1):
            print(f"repetition {number} of {repetitions}", flush=True)
            bench.repetition(number)
    return report.Run(
        name=name,
        quick=quick,
        started=started,
        environment=about,
        settings={
            "repetitions": repetitions,
            "cores": cores.note,
            "daemon": "defaults, " + ", ".join(_DAEMON_SETTINGS),
            "durability": "fdatasync before every acknowledgement",
        },
        samples=bench.samples,
        repeat="python -m bench.groups --quick" if quick else "python -m bench.groups",
    )


if __name__ == "__main__":
    main()
