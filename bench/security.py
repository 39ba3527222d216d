"""What it costs to be safe, in one run: ``python -m bench.security [--quick]``.

Commits in the clear and over TLS, each with a daemon of its own; and those of some connections
while others do nothing but shake hands. As in `bench.run`: the daemon on one core, all else on
another one.
"""

import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import trustme

from bench.command import Bench, Benchmark, command
from bench.load import Plan
from bench.measures import Medians, Samples, ratio_at_least, ratio_at_most
from bench.processes import DAEMON_NOTES, Server, daemon, on_core, run_json
from bench.report import Table, fields_table
from bench.talk import connect

HOST: Final = "127.0.0.1"
# What a quarter of a core commits, alone and beside handshakes.
RATE_PER_S: Final = 2_000
SHAKING: Final = 4

PLAIN: Final = "plain"
TLS: Final = "tls"
PLAIN_ONE: Final = "plain-one"
TLS_ONE: Final = "tls-one"
ALONE: Final = "alone"
BESIDE: Final = "beside"
_TITLES: Final = {
    PLAIN: "commits, 64 connections, 64 in flight on each, in the clear",
    TLS: "the same over TLS",
    PLAIN_ONE: "commits, 64 connections, one in flight on each, in the clear",
    TLS_ONE: "the same over TLS",
    ALONE: f"{RATE_PER_S:,} commits/s over TLS",
    BESIDE: f"the same beside {SHAKING} threads that do nothing but shake hands",
}
_FIELDS: Final = (
    *((row, "rate_per_s", "commits/s", 0) for row in (PLAIN, TLS, PLAIN_ONE, TLS_ONE)),
    *((row, "server_cpu_us", "us of CPU a commit", 1) for row in (PLAIN, TLS, PLAIN_ONE, TLS_ONE)),
    *((row, "p99_ms", "ms, p99", 1) for row in (ALONE, BESIDE)),
    (BESIDE, "handshakes_per_s", "handshakes/s", 0),
)


_AIMS: Final = (
    *(
        ratio_at_least(plain, tls, "server_cpu_us", title, 0.75)
        for plain, tls, title in (
            (PLAIN, TLS, "commits over TLS, of those in the clear, by CPU time"),
            (PLAIN_ONE, TLS_ONE, "the same, one in flight on each connection"),
        )
    ),
    ratio_at_most(BESIDE, ALONE, "p99_ms", "p99 of commits beside handshakes, of alone", 2.0),
)


def _tables(samples: Samples) -> Mapping[str, Table]:
    return {"Safety": fields_table(Medians(samples), _TITLES, _FIELDS)}


class SecurityBench(Bench):
    """In the clear and TLS have a daemon each; alone and beside share another one."""

    def repetition(self, number: int) -> None:
        """Measure all rows once.

        Raises:
            ProcessError: A process failed.
        """
        server_core = self.choice.cores.server
        with daemon(self.folder / f"{number}-{PLAIN}", server_core) as server:
            self.keep(PLAIN, self._loaded(server))
            self.keep(PLAIN_ONE, self._loaded(server, window=1))
        authority, setting = self._certified()
        folder = self.folder / f"{number}-{TLS}"
        with daemon(folder, server_core, setting, listen=f"SSL://{HOST}:0") as server:
            self.keep(TLS, self._loaded(server, authority))
            self.keep(TLS_ONE, self._loaded(server, authority, window=1))
            self.keep(ALONE, self._paced(server, authority))
            with _shaking(server, authority, self.choice.cores.load) as shaken:
                found = self._paced(server, authority)
            rate = len(shaken) / found["seconds"]
            self.keep(BESIDE, {**found, "handshakes_per_s": rate, "wrong": float(rate == 0)})

    def _certified(self) -> tuple[Path, str]:
        """Return the file of an authority, and the setting of a daemon that it has certified."""
        authority, store = self.folder / "ca.pem", self.folder / "server.pem"
        if not store.exists():
            ca = trustme.CA(key_type=trustme.KeyType.RSA)
            ca.cert_pem.write_to_path(authority)
            leaf = ca.issue_cert(HOST, key_type=trustme.KeyType.RSA)
            leaf.private_key_and_cert_chain_pem.write_to_path(store)
            store.chmod(0o600)
        return authority, f"ssl.keystore.location={store.absolute()}"

    def _loaded(
        self, server: Server, authority: Path | None = None, window: int = 64
    ) -> dict[str, float]:
        return self._run(server, authority, connections=64, window=window)

    def _paced(self, server: Server, authority: Path) -> dict[str, float]:
        rate_per_s = 200 if self.choice.quick else RATE_PER_S
        found = self._run(server, authority, connections=8, window=32, rate_per_s=rate_per_s)
        return {**found, "p99_ms": found["p99_us"] / 1000}

    def _run(
        self,
        server: Server,
        authority: Path | None,
        *,
        connections: int,
        window: int,
        rate_per_s: float | None = None,
    ) -> dict[str, float]:
        seconds = 0.3 if self.choice.quick else 8.0
        plan = Plan(
            host=server.host,
            port=server.port,
            dialect="coordinator",
            workload="commit",
            connections=connections,
            window=window,
            partitions=1,
            window_s=seconds / 8,
            warmup_s=seconds / 4,
            duration_s=seconds,
            run="security",
            rate_per_s=rate_per_s,
            server_pid=server.pid,
            sleeps=True,
            authority="" if authority is None else str(authority.absolute()),
        )
        found: dict[str, float] = run_json("bench.load", plan, core=self.choice.cores.load)
        return found


@contextmanager
def _shaking(server: Server, authority: Path, core: int | None) -> Iterator[list[None]]:
    """Connect again and again; yield one thing for each time."""
    trusting = ssl.create_default_context(cafile=authority)
    done = threading.Event()
    shaken: list[None] = []

    def shake() -> None:
        while not done.is_set():
            with suppress(OSError), closing(connect(server.host, server.port, trusting)):
                shaken.append(None)

    threads = [threading.Thread(target=shake) for _ in range(SHAKING)]
    with on_core(core):
        for thread in threads:
            thread.start()
        try:
            yield shaken
        finally:
            done.set()
            for thread in threads:
                thread.join()


main = command(
    Benchmark(
        module="bench.security",
        help="Measure what it costs to be safe, and write the results.",
        name="security",
        repetitions=3,
        make=SecurityBench,
        settings=lambda _quick: {**DAEMON_NOTES, "certificate": "RSA, 2,048 bits"},
        titles=_TITLES,
        aims=_AIMS,
        tables=_tables,
    )
)


if __name__ == "__main__":
    main()
