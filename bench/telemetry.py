"""What it costs to be looked at, in one run: ``python -m bench.telemetry [--quick]``.

Commits with the HTTP listener off; with it on, scraped each second and followed by a page; and
one scrape of very many series, with the stall that a neighbour's requests see. The page in a real
Chromium (`bench.page`), where there is one, and what an hour's history takes (`bench.history`).
Commits beside a flood are those of `bench.http_flood`. As in `bench.run`: the daemon on one core,
all else on another one.
"""

import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from time import perf_counter, sleep
from typing import Final

from bench.chromium import missing
from bench.command import Bench, Benchmark, command
from bench.history import History
from bench.http_flood import (
    FLOODS,
    QUICK,
    Flood,
    Row,
    Times,
    commits_beside,
    http_daemon,
    measure,
)
from bench.load import Plan
from bench.measures import Medians, Samples, at_most, field_at_most
from bench.operators import fill_with_lag
from bench.page import Visit
from bench.processes import DAEMON_NOTES, ProcessError, Server, beside, daemon, on_core, run_json
from bench.report import Table, fields_table
from bench.talk import Talk, ask, connect
from coordinator.http.metrics import KEPT_S
from protocol import messages as m

PARTITIONS: Final = 10
GROUPS: Final = 10_000
PAGE_GROUPS: Final = 2_000
UPDATES: Final = 30
MAX_SERIES: Final = 1_000_000
FLOOD_TIMES: Final = Times(1, 1.0, 4.0)
MANY_GROUPS: Final = 100_000
READERS: Final = Row(
    "readers",
    f"24 readers of /metrics over {MANY_GROUPS:,} groups",
    {"askers": 24, "path": "/metrics"},
)
READERS_TIMES: Final = Times(1, 1.0, 15.0)
# As deploy/prometheus has it. A load that is looked at lasts as long, and has one scrape in it.
SCRAPE_PERIOD_S: Final = 15.0
LOOKED_AT_TURNS: Final = 2

OFF: Final = "off"
ON: Final = "on"
OFTEN: Final = "often"
SCRAPE: Final = "scrape"
SCRAPE_BESIDE: Final = "scrape-beside"
PAGE: Final = "page"
HISTORY: Final = "history"
_TITLES: Final = {
    OFF: "commits, 64 connections, no HTTP listener",
    ON: f"the same with one, scraped every {SCRAPE_PERIOD_S:.0f} s, its events followed",
    OFTEN: "the same, scraped each second",
    SCRAPE: f"a scrape of {GROUPS:,} groups with {PARTITIONS} partitions",
    SCRAPE_BESIDE: "the same beside a client that asks without a pause",
    PAGE: f"the page in Chromium, {PAGE_GROUPS:,} groups with {PARTITIONS} partitions",
    HISTORY: f"an hour's history of {GROUPS * PARTITIONS:,} partitions",
    **{row.name: f"4,000 commits/s: {row.title}" for row in (*FLOODS, READERS)},
}
_FIELDS: Final = (
    *((row, "server_cpu_us", "us of CPU a commit", 1) for row in (OFF, ON, OFTEN)),
    (SCRAPE, "wall_s", "s", 2),
    (SCRAPE, "series", "series", 0),
    (SCRAPE_BESIDE, "wall_s", "s", 2),
    (SCRAPE_BESIDE, "stall_ms", "ms, the client's slowest answer", 1),
    (SCRAPE_BESIDE, "idle_stall_ms", "ms, the same without a scrape", 1),
    (PAGE, "first_ms", "ms to the first groups", 0),
    (PAGE, "all_ms", "ms to all groups", 0),
    (PAGE, "update_ms", "ms from a commit's answer to the lag of its group", 0),
    (PAGE, "slowest_ms", f"ms, the slowest of {UPDATES}", 0),
    (HISTORY, "history_mb", "MB", 1),
    *((row.name, "p99_ms", "ms, p99", 1) for row in (*FLOODS, READERS)),
    (READERS.name, "max_ms", "ms, the slowest", 1),
)


def _more(medians: Medians) -> float | None:
    off, on = (medians.of(row, "server_cpu_us") for row in (OFF, ON))
    return None if off is None or on is None else on / off


def _slower(row: str, medians: Medians) -> float | None:
    alone, flooded = (medians.of(name, "p99_ms") for name in (FLOODS[0].name, row))
    return None if alone is None or flooded is None else flooded / alone


_AIMS: Final = (
    at_most("watched", "CPU of a commit while it is looked at, of one that isn't", _more, 1.04),
    field_at_most(SCRAPE, "wall_s", _TITLES[SCRAPE], 1.0, "s"),
    field_at_most(SCRAPE_BESIDE, "stall_ms", "the slowest request beside one", 10.0, "ms"),
    field_at_most(PAGE, "first_ms", f"{_TITLES[PAGE]}: the first groups", 1_000, "ms"),
    field_at_most(PAGE, "all_ms", "all groups", 1_000, "ms"),
    field_at_most(PAGE, "update_ms", "from a commit's answer to the lag shown", 100, "ms"),
    field_at_most(HISTORY, "history_mb", _TITLES[HISTORY], 100, "MB"),
    *(
        at_most(row.name, f"p99 of commits: {row.title}, of alone", partial(_slower, row.name), 2.0)
        for row in FLOODS[1:]
    ),
    field_at_most(READERS.name, "p99_ms", f"p99 of commits: {READERS.title}", 60.0, "ms"),
)


def _tables(samples: Samples) -> Mapping[str, Table]:
    return {"Being looked at": fields_table(Medians(samples), _TITLES, _FIELDS)}


class TelemetryBench(Bench):
    """Off and on have a daemon each, loaded by turns; so have the scrapes and the floods."""

    def repetition(self, number: int) -> None:
        """Measure all rows once.

        Raises:
            ProcessError: A process failed.
        """
        self._commits(number)
        self._scrape(number)
        self._page(number)
        if HISTORY not in self.samples:  # It takes a minute, and always as much.
            plan = History(20 if self.choice.quick else GROUPS, PARTITIONS)
            self.keep(HISTORY, run_json("bench.history", plan, core=self.choice.cores.load))
        times = QUICK if self.choice.quick else FLOOD_TIMES
        floods = measure(self.folder / f"{number}-flood", self.choice.cores, times)
        for name, (found,) in floods.items():
            self.keep(name, {"p99_ms": found["p99_us"] / 1000, "wrong": found["wrong"]})

        self._readers(number)

    def _readers(self, number: int) -> None:
        # On one core the kernel itself gives the disk's thread its turn.
        cores = self.choice.cores._replace(server=None)
        groups, times = (20, QUICK) if self.choice.quick else (MANY_GROUPS, READERS_TIMES)
        folder = self.folder / f"{number}-{READERS.name}"
        with http_daemon(folder, cores, f"metrics.max.series={MAX_SERIES}") as (server, port):
            fill_with_lag(server, groups, 1, cores.load)
            found = commits_beside(server, port, READERS, cores, times)
        p99_ms, max_ms = found["p99_us"] / 1000, found["max_us"] / 1000
        self.keep(READERS.name, {"p99_ms": p99_ms, "max_ms": max_ms, "wrong": found["wrong"]})

    def _commits(self, number: int) -> None:
        cores = self.choice.cores
        with (
            daemon(self.folder / f"{number}-{OFF}", cores.server) as off,
            http_daemon(self.folder / f"{number}-{ON}", cores) as (on, port),
        ):
            seconds = 0.3 if self.choice.quick else SCRAPE_PERIOD_S

            def looked_at(period_s: float) -> dict[str, float]:
                with _looked_at(on.host, port, cores.load, period_s):
                    return self._loaded(on, seconds)

            self.keep_by_turns(
                {
                    OFF: lambda: self._loaded(off, seconds),
                    ON: lambda: looked_at(seconds),
                    OFTEN: lambda: looked_at(1.0),
                },
                LOOKED_AT_TURNS,
            )

    def _loaded(self, server: Server, seconds: float) -> dict[str, float]:
        plan = Plan(
            host=server.host,
            port=server.port,
            dialect="coordinator",
            workload="commit",
            connections=64,
            window=64,
            partitions=1,
            window_s=seconds / 30,
            warmup_s=seconds / 30,
            duration_s=seconds,
            run="telemetry",
            server_pids=(server.pid,),
        )
        found: dict[str, float] = run_json("bench.load", plan, core=self.choice.cores.load)
        return found

    def _scrape(self, number: int) -> None:
        cores = self.choice.cores
        groups = 20 if self.choice.quick else GROUPS
        folder = self.folder / f"{number}-{SCRAPE}"
        with http_daemon(folder, cores, f"metrics.max.series={MAX_SERIES}") as (server, port):
            fill_with_lag(server, groups, PARTITIONS, cores.load)
            with on_core(cores.load), closing(connect(server.host, server.port)) as talk:
                self._keep_scrape(SCRAPE, groups, _scraped(server.host, port))
                idle = [_asked(talk) for _ in range(100 if self.choice.quick else 1_000)]
                sleep(KEPT_S)
                scraped: list[tuple[float, int]] = []
                thread = threading.Thread(
                    target=lambda: scraped.append(_scraped(server.host, port))
                )
                thread.start()
                took = [_asked(talk)]
                while thread.is_alive():
                    took.append(_asked(talk))
                thread.join()
        if not scraped:
            raise ProcessError("the scrape failed")
        stalls = {"stall_ms": 1000 * max(took), "idle_stall_ms": 1000 * max(idle)}
        self._keep_scrape(SCRAPE_BESIDE, groups, scraped[0], stalls)

    def _keep_scrape(
        self, row: str, groups: int, scraped: tuple[float, int], more: Mapping[str, float] = {}
    ) -> None:
        wall_s, series = scraped
        wrong = float(series < groups * PARTITIONS)
        self.keep(row, {"wall_s": wall_s, "series": series, "wrong": wrong, **more})

    def _page(self, number: int) -> None:
        if (why := missing()) is not None:
            self.about["Chromium"] = f"skipped: {why}"
            return
        cores = self.choice.cores
        groups, updates = (20, 3) if self.choice.quick else (PAGE_GROUPS, UPDATES)
        with http_daemon(self.folder / f"{number}-{PAGE}", cores) as (server, port):
            fill_with_lag(server, groups, PARTITIONS, cores.load)
            plan = Visit(server.host, server.port, port, groups, updates)
            # Chromium is several processes, which no reader has on one core.
            self.keep(PAGE, run_json("bench.page", plan, core=None))


def _asked(talk: Talk) -> float:
    """Ask something that needs no disk; return how long the answer took."""
    began = perf_counter()
    ask([talk], [m.FindCoordinatorRequest(0, ("busy",))])
    return perf_counter() - began


def _scraped(host: str, port: int) -> tuple[float, int]:
    """Return how long a scrape took, and how many series it has."""
    with closing(http.client.HTTPConnection(host, port, timeout=60)) as connection:
        began = perf_counter()
        connection.request("GET", "/metrics")
        series = 0
        response = connection.getresponse()
        while part := response.read(1 << 18):
            series += part.count(b"\nkminion_")
        return perf_counter() - began, series


@contextmanager
def _looked_at(host: str, port: int, core: int | None, period_s: float) -> Iterator[None]:
    """Scrape in the middle of each period, and follow the events, as a page does."""
    done = threading.Event()

    def scrape() -> None:
        wait_s = period_s / 2
        while not done.wait(wait_s):
            _scraped(host, port)
            wait_s = period_s

    with on_core(core), beside("bench.http_flood", Flood(host, port, streams=1), core=core):
        thread = threading.Thread(target=scrape)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


main = command(
    Benchmark(
        module="bench.telemetry",
        help="Measure what it costs to be looked at, and write the results.",
        name="telemetry",
        repetitions=3,
        make=TelemetryBench,
        settings=lambda _quick: DAEMON_NOTES,
        titles=_TITLES,
        aims=_AIMS,
        tables=_tables,
    )
)


if __name__ == "__main__":
    main()
