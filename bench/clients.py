"""The client's forms in one run: ``python -m bench.clients [--quick]``.

The same commits through the trio client and through `client.aio`, under either event loop, by one
task and by 64. As in `bench.run`: the daemon on one core, the client on another one.
"""

from collections.abc import Mapping
from typing import Final

from bench.client_load import ASYNCIO, TRIO, UVLOOP, ClientPlan
from bench.command import Bench, Benchmark, command
from bench.measures import Medians, Samples, faster
from bench.processes import DAEMON_NOTES, daemon, run_json
from bench.report import Table, between, number

_FORMS: Final = {
    TRIO: "client, trio",
    ASYNCIO: "client.aio, asyncio",
    UVLOOP: "client.aio, uvloop",
}
_TASKS: Final = (1, 64)


def row(form: str, tasks: int) -> str:
    """Return the name of a row."""
    return f"client_{form}_{tasks}"


_TITLES: Final = {
    row(form, tasks): f"{words}, {tasks} task{'s' if tasks > 1 else ''}"
    for tasks in _TASKS
    for form, words in _FORMS.items()
}
_AIMS: Final = tuple(
    faster(row(form, tasks), row(TRIO, tasks), f"{_TITLES[row(form, tasks)]}: rate, of trio's", 0.7)
    for tasks in _TASKS
    for form in (ASYNCIO, UVLOOP)
)


def _tables(samples: Samples) -> Mapping[str, Table]:
    medians = Medians(samples)
    lines: Table = [
        (
            "commits",
            "per s",
            "(spread)",
            "CPU us of the client",
            "p50 us",
            "p99 us",
            "of trio's rate",
        )
    ]
    for tasks in _TASKS:
        for form in _FORMS:
            name = row(form, tasks)
            lines.append(
                (
                    _TITLES[name],
                    number(medians.of(name, "rate_per_s"), 0),
                    between(medians.spread(name, "rate_per_s"), 0),
                    *(
                        number(medians.of(name, field), 0)
                        for field in ("cpu_us", "p50_us", "p99_us")
                    ),
                    number(medians.ratio(name, row(TRIO, tasks)), 2),
                )
            )
    return {"Commits": lines}


class ClientBench(Bench):
    """All rows of a repetition have the same daemon, one after the other."""

    def repetition(self, number: int) -> None:
        """Measure all rows once.

        Raises:
            ProcessError: A process failed.
        """
        warmup_s, duration_s = (0.1, 0.2) if self.choice.quick else (1.5, 4.0)
        with daemon(self.folder / str(number), self.choice.cores.server) as server:
            for tasks in _TASKS:
                for form in _FORMS:
                    plan = ClientPlan(server.host, server.port, form, tasks, warmup_s, duration_s)
                    found = run_json("bench.client_load", plan, core=self.choice.cores.load)
                    self.keep(row(form, tasks), found)


main = command(
    Benchmark(
        module="bench.clients",
        help="Measure the client's forms, and write the results.",
        name="clients",
        repetitions=5,
        make=ClientBench,
        settings=lambda _quick: DAEMON_NOTES,
        titles=_TITLES,
        aims=_AIMS,
        tables=_tables,
    )
)


if __name__ == "__main__":
    main()
