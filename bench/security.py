"""What it costs to be safe, in one run: ``python -m bench.security [--quick]``.

Commits in the clear and over TLS, without rights and with 1,000 rules; and those of a good client
beside handshakes, log-ins, thousands of idle and slow connections, and an attack. As in
`bench.run`: the daemon on one core, all else on another one.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trustme

from bench.command import Bench, Benchmark, command
from bench.crowds import ATTACKS, Crowd, prepare
from bench.dialects import TOPIC
from bench.fill import FillPlan
from bench.load import Plan
from bench.measures import Medians, Samples, field_at_most, ratio_at_least, ratio_at_most
from bench.processes import (
    DAEMON_NOTES,
    Server,
    beside,
    daemon,
    output_of,
    run_json,
)
from bench.report import Table, fields_table
from client.blocking import connect_blocking
from client.operators import Acl
from protocol.acls import ANONYMOUS, Operation, ResourceType
from protocol.partition import INT32_MAX
from protocol.quotas import REQUEST_RATE

USER: Final = "admin"
PASSWORD: Final = "pencil"
HOST: Final = "127.0.0.1"
# What a quarter of a core commits, alone and beside handshakes.
RATE_PER_S: Final = 2_000
SHAKING: Final = 4
LOG_IN_THREADS: Final = 4
IDLE: Final = 2_000
SLOW: Final = 200
GROUPS: Final = 100_000
RULES_COUNT: Final = 1_000

PLAIN: Final = "plain"
TLS: Final = "tls"
PLAIN_ONE: Final = "plain-one"
TLS_ONE: Final = "tls-one"
ALONE: Final = "alone"
BESIDE: Final = "beside"
FREE: Final = "free"
RULES: Final = "rules"
FREE_ONE: Final = "free-one"
RULES_ONE: Final = "rules-one"
BEFORE_LOG_INS: Final = "before-log-ins"
LOG_INS: Final = "log-ins"
BEFORE_CROWD: Final = "before-crowd"
CROWD: Final = "crowd"
BEFORE_ATTACK: Final = "before-attack"
ATTACK: Final = "attack"
_TITLES: Final = {
    PLAIN: "commits, 64 connections, 64 in flight on each, in the clear",
    TLS: "the same over TLS",
    PLAIN_ONE: "commits, 64 connections, one in flight on each, in the clear",
    TLS_ONE: "the same over TLS",
    ALONE: f"{RATE_PER_S:,} commits/s over TLS",
    BESIDE: f"the same beside {SHAKING} threads that do nothing but shake hands",
    FREE: "commits, 64 in flight on each of 64 connections, nobody asks who they are",
    RULES: f"the same with {RULES_COUNT:,} rules and a quota of requests",
    FREE_ONE: "commits, one in flight on each of 64 connections, nobody asks who they are",
    RULES_ONE: f"the same with {RULES_COUNT:,} rules and a quota of requests",
    BEFORE_LOG_INS: f"{RATE_PER_S:,} commits/s",
    LOG_INS: f"the same beside {LOG_IN_THREADS} threads that do nothing but log in by SCRAM",
    BEFORE_CROWD: f"{RATE_PER_S:,} commits/s",
    CROWD: f"the same beside {IDLE:,} idle and {SLOW} slow connections",
    BEFORE_ATTACK: f"{RATE_PER_S:,} commits/s, {GROUPS:,} groups",
    ATTACK: "the same beside lists, scans, new patterns, lags and commits of 10,000 partitions",
}
_ALONE_AND_BESIDE: Final = (
    *((ALONE, BESIDE), (BEFORE_LOG_INS, LOG_INS)),
    *((BEFORE_CROWD, CROWD), (BEFORE_ATTACK, ATTACK)),
)
_BY_CPU: Final = (PLAIN, TLS, PLAIN_ONE, TLS_ONE, FREE, RULES, FREE_ONE, RULES_ONE)
_FIELDS: Final = (
    *((row, "rate_per_s", "commits/s", 0) for row in (PLAIN, TLS, PLAIN_ONE, TLS_ONE)),
    *((row, "server_cpu_us", "us of CPU a commit", 1) for row in _BY_CPU),
    *((row, "p99_ms", "ms, p99", 1) for pair in _ALONE_AND_BESIDE for row in pair),
    (BESIDE, "handshakes_per_s", "handshakes/s", 0),
    (LOG_INS, "log_ins_per_s", "log-ins/s", 0),
    (LOG_INS, "log_in_p99_ms", "ms, p99 of a log-in", 1),
    *((ATTACK, f"{name}_answers", f"{name} answered", 0) for name in ATTACKS),
)


_AIMS: Final = (
    *(
        ratio_at_least(plain, tls, "server_cpu_us", title, 0.75)
        for plain, tls, title in (
            (PLAIN, TLS, "commits over TLS, of those in the clear, by CPU time"),
            (PLAIN_ONE, TLS_ONE, "the same, one in flight on each connection"),
        )
    ),
    *(
        ratio_at_most(rules, free, "server_cpu_us", title, 1.03)
        for rules, free, title in (
            (RULES, FREE, "CPU of a commit with 1,000 rules and a quota, of without"),
            (RULES_ONE, FREE_ONE, "the same, one in flight on each connection"),
        )
    ),
    ratio_at_most(BESIDE, ALONE, "p99_ms", "p99 of commits beside handshakes, of alone", 2.0),
    ratio_at_most(LOG_INS, BEFORE_LOG_INS, "p99_ms", "the same beside log-ins", 2.0),
    ratio_at_most(
        CROWD, BEFORE_CROWD, "p99_ms", "the same beside 2,000 idle and 200 slow connections", 2.0
    ),
    ratio_at_most(ATTACK, BEFORE_ATTACK, "p99_ms", "the same beside an attack", 5.0),
    field_at_most(ATTACK, "p99_ms", "p99 of commits beside an attack", 20.0, "ms"),
)


def _tables(samples: Samples) -> Mapping[str, Table]:
    return {"Safety": fields_table(Medians(samples), _TITLES, _FIELDS)}


class SecurityBench(Bench):
    """What is held against each other shares a daemon, or is measured by turns on two."""

    def repetition(self, number: int) -> None:
        """Measure all rows once.

        Raises:
            ProcessError: A process failed.
        """
        for part, measure in (
            (TLS, self._over_tls),
            (CROWD, self._beside_a_crowd),
            (ATTACK, self._beside_an_attack),
            (LOG_INS, self._beside_log_ins),
            (RULES, self._with_rules),
        ):
            if part in self.choice.only:
                measure(number)

    def _over_tls(self, number: int) -> None:
        with self._daemon(f"{number}-{PLAIN}") as server:
            self.keep(PLAIN, self._loaded(server))
            self.keep(PLAIN_ONE, self._loaded(server, window=1))
        authority, setting = self._certified()
        with self._daemon(f"{number}-{TLS}", setting, listen=f"SSL://{HOST}:0") as server:
            self.keep(TLS, self._loaded(server, authority))
            self.keep(TLS_ONE, self._loaded(server, authority, window=1))
            self.keep(ALONE, self._paced(server, authority))
            crowd = Crowd(
                server.host, server.port, handshakes=SHAKING, authority=str(authority.absolute())
            )
            with self._crowd(crowd) as shaken:
                found = self._paced(server, authority)
        rate = shaken["handshakes"] / shaken["seconds"]
        self.keep(BESIDE, {**found, "handshakes_per_s": rate})

    def _daemon(
        self, name: str, *settings: str, listen: str = f"{HOST}:0"
    ) -> AbstractContextManager[Server]:
        return daemon(self.folder / name, self.choice.cores.server, *settings, listen=listen)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[tuple[Server, int]]:
        """Run a daemon with rules and a quota for who doesn't log in; yield it, and where to."""
        password = self.folder / "password"
        password.write_text(PASSWORD, encoding="utf-8")
        settings = (
            f"sasl.bootstrap.user={USER}",
            f"sasl.bootstrap.password.file={password.absolute()}",
        )
        listen = f"SASL_PLAINTEXT://{HOST}:0,PLAINTEXT://{HOST}:0"
        with self._daemon(name, *settings, listen=listen) as server:
            log_in_port = _first_port(output_of(self.folder / name))
            _set_rules(log_in_port)
            yield server, log_in_port

    def _beside_a_crowd(self, number: int) -> None:
        idle, slow = (20, 4) if self.choice.quick else (IDLE, SLOW)
        with self._daemon(f"{number}-{CROWD}") as server:
            prepare(server.host, server.port, quick=self.choice.quick)
            self.keep(BEFORE_CROWD, self._paced(server))
            with self._crowd(Crowd(server.host, server.port, idle=idle, slow=slow)):
                found = self._paced(server)
        self.keep(CROWD, found)

    def _beside_an_attack(self, number: int) -> None:
        groups = 200 if self.choice.quick else GROUPS
        with self._daemon(f"{number}-{ATTACK}") as server:
            prepare(server.host, server.port, quick=self.choice.quick)
            plan = FillPlan(server.host, server.port, "coordinator", groups, partitions=1)
            run_json("bench.fill", plan, core=self.choice.cores.load)
            self.keep(BEFORE_ATTACK, self._paced(server))
            with self._crowd(Crowd(server.host, server.port, attacks=True)) as attack:
                found = self._paced(server)
        self.keep(ATTACK, {**found, **attack})

    def _beside_log_ins(self, number: int) -> None:
        with self._guarded(f"{number}-{LOG_INS}") as (server, log_in_port):
            self.keep(BEFORE_LOG_INS, self._paced(server))
            crowd = Crowd(
                *(server.host, log_in_port), log_ins=LOG_IN_THREADS, user=USER, password=PASSWORD
            )
            with self._crowd(crowd) as came_in:
                found = self._paced(server)
        measured = {
            "log_ins_per_s": came_in["log_ins"] / came_in["seconds"],
            "log_in_p99_ms": came_in["log_ins_p99_us"] / 1000,
        }
        self.keep(LOG_INS, {**found, **measured})

    def _with_rules(self, number: int) -> None:
        with (
            self._daemon(f"{number}-{FREE}") as free,
            self._guarded(f"{number}-{RULES}") as (guarded, _),
        ):
            for window, rows in ((64, (FREE, RULES)), (1, (FREE_ONE, RULES_ONE))):
                servers = zip(rows, (free, guarded), strict=True)
                loaded = partial(self._loaded, window=window, seconds=1.0)
                self.keep_by_turns({row: partial(loaded, server) for row, server in servers})

    def _crowd(self, crowd: Crowd) -> AbstractContextManager[dict[str, float]]:
        return beside("bench.crowds", crowd, core=self.choice.cores.load)

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
        self, server: Server, authority: Path | None = None, window: int = 64, seconds: float = 4.0
    ) -> dict[str, float]:
        return self._run(server, authority, connections=64, window=window, seconds=seconds)

    def _paced(self, server: Server, authority: Path | None = None) -> dict[str, float]:
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
        seconds: float = 4.0,
    ) -> dict[str, float]:
        seconds = 0.3 if self.choice.quick else seconds
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
            server_pids=(server.pid,),
            sleeps=True,
            authority="" if authority is None else str(authority.absolute()),
        )
        found: dict[str, float] = run_json("bench.load", plan, core=self.choice.cores.load)
        return found


def _first_port(output: Path) -> int:
    """Return the port of the listener that was named first."""
    lines = output.read_text(encoding="utf-8").splitlines()
    events = map(json.loads, lines)
    return int(next(event["port"] for event in events if event["event"] == "listening"))


def _set_rules(log_in_port: int) -> None:
    """Let who doesn't log in commit, by two of 1,000 rules, and as fast as he can."""
    security = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    others = [
        Acl(f"User:other-{n % 50}", Operation.READ, kind, f"other-{n}", prefix=n % 3 == 0)
        for n, kind in enumerate([ResourceType.GROUP, ResourceType.TOPIC] * (RULES_COUNT // 2 - 1))
    ]
    own = [
        Acl(ANONYMOUS, Operation.READ, ResourceType.GROUP, "bench-", prefix=True),
        Acl(ANONYMOUS, Operation.READ, ResourceType.TOPIC, TOPIC),
    ]
    with connect_blocking(f"{HOST}:{log_in_port}", security=security) as client:
        client.create_acls([*others, *own])
        client.alter_quotas(ANONYMOUS, {REQUEST_RATE: INT32_MAX})


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
        parts=(TLS, CROWD, ATTACK, LOG_INS, RULES),
    )
)


if __name__ == "__main__":
    main()
