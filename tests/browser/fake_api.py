"""What the page is shown while no daemon is asked: the API of docs/http.md over invented groups.

For what a daemon needs a night for, and for what it never does: names of 10 kB with markup, 2,000
groups, a load that goes on. Time stands where `NIGHT` says and goes on from there.
"""

import json
import math
import queue
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from coordinator.http import page
from coordinator.http.guard import SECURITY_HEADERS

NIGHT: Final = datetime(2026, 3, 2, 3, 14, 7, tzinfo=UTC)
MINUTES: Final = 60
TEAMS: Final = ("billing", "search", "ledger", "mail", "fraud", "stock", "audit", "clicks")
JOBS: Final = ("daily", "export", "index", "alerts", "backfill", "join", "sink", "features")

Json = dict[str, Any]


def text_of(at: datetime) -> str:
    """Return *at* as the API writes it."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class FakeApi:
    """The groups, and who follows them.

    Attributes:
        problem: Every question is answered with this status and detail, if it is there.
        flowing: No question is answered while it is not set.
    """

    groups: dict[str, Json] = field(default_factory=dict)
    details: dict[str, Json] = field(default_factory=dict)
    problem: tuple[int, str] | None = None
    flowing: threading.Event = field(default_factory=threading.Event)
    streams: list[tuple[str | None, "queue.Queue[bytes | None]"]] = field(default_factory=list)
    missed_at: datetime = NIGHT
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Let answers flow."""
        self.flowing.set()

    def now(self) -> datetime:
        """Return the time of the night."""
        return NIGHT + timedelta(seconds=time.monotonic() - self.began)

    def tell(self, name: str, data: object, group: str | None = None) -> None:
        """Send an event to all who follow everything, or *group*."""
        frame = f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
        for wanted, waiting in self.streams:
            if group is None or wanted == group:
                waiting.put(frame)

    def change(self, group_id: str, **facts: object) -> None:
        """Change a group and tell everybody."""
        self.groups[group_id].update(facts)
        told = {k: v for k, v in self.groups[group_id].items() if k != "samples"}
        self.tell("groups", {"changed": [told], "removed": []})
        self.tell("group", self.group(group_id), group_id)

    def cut(self) -> None:
        """End all event streams; a list that is older than this misses something."""
        self.missed_at = self.now() + timedelta(seconds=1)
        for _, waiting in self.streams:
            waiting.put(None)

    def group(self, group_id: str) -> Json:
        """Return one group, as alone."""
        return {**self.groups[group_id], **self.details.get(group_id, bare())["alone"]}

    def answer(self, path: str, query: Mapping[str, list[str]]) -> Json | None:
        """Return what stands under *path*, None if nothing does."""
        group_id = query.get("group", [""])[0]
        match path.strip("/").split("/")[2:]:
            case ["groups"]:
                return self._groups(query)
            case ["group"] if group_id in self.groups:
                return self.group(group_id)
            case ["group", "rebalances"] if group_id in self.groups:
                return listed(self.details.get(group_id, bare())["rebalances"])
            case ["group", "partitions"] if group_id in self.groups:
                return self._partitions(group_id, query)
            case ["session"]:
                return {"principal": None, "by": None}
            case ["node"]:
                return node()
        return None

    def _groups(self, query: Mapping[str, list[str]]) -> Json:
        q = query.get("q", [""])[0].lower()
        states = query.get("state")
        found = [
            group
            for group in self.groups.values()
            if q in group["id"].lower() and (not states or group["state"] in states)
        ]
        first = query.get("sort", ["lag"])[0]
        found.sort(key=lambda group: (-(group[first] or 0), group["id"]))
        limit = int(query.get("limit", ["200"])[0])
        answer = listed(found[:limit], len(found))
        answer["as_of"] = text_of(self.now())
        return answer

    def _partitions(self, group_id: str, query: Mapping[str, list[str]]) -> Json:
        found = self.details.get(group_id, bare())["partitions"]
        if topics := query.get("topic"):
            found = [one for one in found if one["topic"] in topics]
        if query.get("sort") == ["lag"]:
            found = sorted(found, key=lambda one: -(one["lag"] or 0))
        limit = int(query.get("limit", ["200"])[0])
        has_samples = "samples" in query
        shown = [one if has_samples else {**one, "samples": []} for one in found[:limit]]
        return listed(shown, len(found))


def listed(items: list[Json], total: int | None = None) -> Json:
    """Return a page of a list."""
    total = len(items) if total is None else total
    return {"items": items, "total": total, "next": "more" if total > len(items) else None}


def bare() -> Json:
    """Return what is told of a group of which nothing is known."""
    alone = {
        "generation": 3,
        "protocol": "range",
        "leader": None,
        "retention_ms": None,
        "members": [],
        "topics": [],
        "rebalance": None,
    }
    return {"alone": alone, "rebalances": [], "partitions": []}


def curve(rng: random.Random, shape: str, size: float) -> list[int | None]:
    """Return an hour of lags: "steady", "saw", "grows" or "recovers"."""
    values: list[int | None] = []
    for minute in range(MINUTES):
        x = minute / (MINUTES - 1)
        base = {
            "steady": 0.5,
            "saw": 0.2 + 0.8 * ((minute % 15) / 15),
            "grows": x**2,
            "recovers": max(0.05, 1 - 1.4 * abs(x - 0.35)) if x > 0.2 else 0.1,
        }[shape]
        values.append(max(0, round(size * base * (1 + 0.15 * (rng.random() - 0.5)))))
    return values


def group(group_id: str, samples: list[int | None], *, seconds: float | None, **facts: Any) -> Json:
    """Return a group as the list has it."""
    lag = samples[-1] if samples else None
    earlier = samples[-6] if len(samples) >= 6 else None
    return {
        "id": group_id,
        "type": "consumer",
        "state": "Stable",
        "members": 3,
        "partitions": 12,
        "unknown_partitions": 0,
        "lag": lag,
        "lag_seconds": seconds,
        "earlier_lag": earlier,
        "earlier_ms": 300_000,
        "samples": samples,
        "sampled_at": text_of(NIGHT),
        **facts,
    }


def many(count: int) -> FakeApi:
    """Return *count* groups: a few far behind, some rebalancing, most of them well."""
    rng = random.Random(7)
    api = FakeApi()
    for n in range(count):
        team, job = TEAMS[n % 8], JOBS[n // 8 % 8]
        group_id = f"{team}-{job}" + (f"-{n // 64}" if n >= 64 else "")
        rank = rng.random()
        size = math.exp(rng.uniform(2, 7)) * (60 if rank < 0.01 else 1)
        shape = rng.choice(("steady", "saw", "grows" if rank < 0.01 else "steady", "recovers"))
        samples = curve(rng, shape, size)
        lag = samples[-1] or 0
        facts: Json = {"members": rng.choice((1, 2, 3, 3, 4, 6, 12)), "partitions": 12}
        if 0.01 < rank < 0.013:
            facts["state"] = rng.choice(("PreparingRebalance", "CompletingRebalance"))
        elif rank < 0.001 or 0.02 < rank < 0.03:
            facts.update(state="Empty", members=0)
        seconds = round(lag / rng.uniform(80, 900), 1)
        if facts["members"] == 0:
            seconds = rng.uniform(3_600, 90_000)
        api.groups[group_id] = group(group_id, samples, seconds=seconds, **facts)
    return api


def member(name: str, host: str, partitions: int, lag: int, heard_ms: int, **facts: Any) -> Json:
    """Return a member as its group has it."""
    return {
        "id": f"{name}-4c1d9a52-7be0-4c1c-9f0e-{abs(hash_of(name)) % 10**12:012d}",
        "instance_id": None,
        "client_id": name,
        "host": host,
        "is_leader": False,
        "heartbeat_age_ms": heard_ms,
        "session_timeout_ms": 45_000,
        "partitions": partitions,
        "unknown_partitions": 0,
        "lag": lag,
        "drained": False,
        "waits": None,
        **facts,
    }


def topic_of_group(name: str, partitions: int, **facts: Any) -> Json:
    """Return a topic as its group has it."""
    return {"topic": name, "partitions": partitions, "unknown_partitions": 0, **facts}


def hash_of(name: str) -> int:
    """Return a number that is the same in each run."""
    return sum(ord(c) * 31**n for n, c in enumerate(name))


def rebalance(
    number: int,
    at: str,
    trigger: str,
    reason: str,
    by: Json | None,
    phases: tuple[int, int],
    late: tuple[Json, ...] = (),
    **facts: Any,
) -> Json:
    """Return a rebalance that began at *at* (a day and a time of March)."""
    day, clock = at.split(" ")
    known = ("id", "instance_id", "client_id", "host")
    return {
        "number": number,
        "started_at": f"2026-03-{day}T{clock}Z",
        "trigger": trigger,
        "reason": reason,
        "by": None if by is None else {key: by[key] for key in known},
        "from_generation": number + 10,
        "to_generation": number + 11,
        "outcome": "stable",
        "members": 4,
        "phases": [{"phase": "join", "ms": phases[0]}, {"phase": "sync", "ms": phases[1]}],
        "late": list(late),
        **facts,
    }


def late(who: Json, phase: str, waited_ms: int, *, removed: bool = False) -> Json:
    """Return who came late, or not at all."""
    told = {key: who[key] for key in ("id", "client_id", "host")}
    return {**told, "phase": phase, "waited_ms": waited_ms, "removed": removed}


def eventful_night(api: FakeApi) -> None:
    """Put a group in that has had one: a silent member, one that is slow, and topics that grew."""
    rng = random.Random(3)
    one = member("loader-1", "10.0.0.4", 4, 1_204, 1_210, is_leader=True)
    two = member("loader-2", "10.0.0.7", 3, 9_871, 2_840)
    three = member("loader-3", "10.0.0.8", 3, 402, 310)
    four = member("loader-4", "10.0.0.9", 2, 0, 26_400, instance_id="rack-4")
    silent = "no heartbeat for 45.0 s, session timeout 45.0 s"
    unassigned = "no SyncGroup within 60.0 s of the join, heard 12.1 s ago"
    grew = "topic orders grew from 8 to 12 partitions"
    joined = "member joined"
    again = "member joined: back after a restart"
    night = [
        rebalance(8, "02 03:02:44", "topics changed", grew, None, (612, 48)),
        rebalance(7, "02 02:33:31", joined, again, four, (2_140, 61)),
        rebalance(
            6,
            "02 02:32:08",
            "sync timeout",
            unassigned,
            four,
            (1_020, 44),
            (late(one, "join", 1_020),),
        ),
        rebalance(
            5,
            "02 02:31:06",
            joined,
            joined,
            four,
            (1_870, 60_000),
            (late(four, "sync", 60_000, removed=True),),
            outcome="overtaken",
        ),
        rebalance(4, "02 02:08:20", joined, again, two, (1_480, 39)),
        rebalance(
            3,
            "02 02:07:11",
            "session expired",
            silent,
            two,
            (12_950, 42),
            (late(three, "join", 12_950),),
        ),
        rebalance(2, "01 23:41:02", "member left", "left: shut down to be updated", one, (540, 37)),
        rebalance(1, "01 21:58:40", joined, joined, one, (3_004, 40), members=1),
    ]
    samples = curve(rng, "recovers", 48_000)
    partitions = []
    for n in range(12):
        owner = (one, one, one, one, two, two, two, three, three, three, four, four)[n]
        part = curve(rng, "recovers" if 4 <= n < 7 else "steady", 3_400 if 4 <= n < 7 else 120)
        lag = 0 if n >= 10 else part[-1] or 0
        end = 1_848_200 + n * 1_337
        partitions.append(
            {
                "topic": "orders" if n < 8 else "refunds",
                "partition": n if n < 8 else n - 8,
                "owner": owner["id"],
                "committed": end - lag,
                "end": end,
                "lag": lag,
                "lag_seconds": round(lag / 4.26, 1),
                "committed_at": text_of(NIGHT - timedelta(seconds=2)),
                "end_reported_at": text_of(NIGHT),
                "metadata": "",
                "samples": part if n < 10 else [0] * MINUTES,
            }
        )
    samples[-1] = sum(part["lag"] for part in partitions)
    for owner in (one, two, three, four):
        mine = [part for part in partitions if part["owner"] == owner["id"]]
        owner.update(lag=sum(part["lag"] for part in mine), partitions=len(mine))
    api.groups["billing"] = group("billing", samples, seconds=74.2, members=4)
    api.details["billing"] = {
        "alone": {
            "generation": 19,
            "protocol": "cooperative-sticky",
            "leader": one["id"],
            "retention_ms": None,
            "members": [one, two, three, four],
            "topics": [
                topic_of_group("orders", 8, lag=9_000, lag_seconds=74.2),
                topic_of_group("refunds", 4, lag=700, lag_seconds=4.2),
            ],
            "rebalance": None,
        },
        "rebalances": night,
        "partitions": partitions,
    }


def begin_rebalance(api: FakeApi, group_id: str) -> None:
    """Have the first member leave, while the third one has not come yet."""
    detail = api.details[group_id]["alone"]
    gone, *rest = detail["members"]
    for one in rest:
        one["waits"] = "join"
    rest[1]["waits"] = None
    detail["members"] = rest
    left = "left: shut down to be updated"
    detail["rebalance"] = rebalance(9, "02 03:14:05", "member left", left, gone, (1_200, 0))
    detail["rebalance"].update(
        started_at=text_of(api.now()),
        to_generation=None,
        outcome=None,
        phases=[{"phase": "join", "ms": 1_200}],
        waiting_for=[rest[1]["id"]],
    )
    api.change(group_id, state="PreparingRebalance", members=len(rest))


def end_rebalance(api: FakeApi, group_id: str) -> None:
    """Have it end."""
    detail = api.details[group_id]
    running = detail["alone"]["rebalance"]
    done = {k: v for k, v in running.items() if k != "waiting_for"}
    phases = [{"phase": "join", "ms": 1_840}, {"phase": "sync", "ms": 52}]
    detail["rebalances"].insert(
        0, {**done, "outcome": "stable", "phases": phases, "to_generation": 20}
    )
    detail["alone"]["rebalance"] = None
    detail["alone"]["generation"] = 20
    for one in detail["alone"]["members"]:
        one["waits"] = None
    api.change(group_id, state="Stable")


HOSTILE: Final = (
    "<img src=x onerror=alert(1)>",
    "<script>document.title='owned'</script>",
    "a/b?c#d%2Fe&f",
    ".",
    "..",
    "%2e%2e",
    "../groups",
    "//",
    "?",
    "#",
    "a+b=c;d",
    "\u202egnillib",
    "bill\u200bing",
    "line\nbreak\ttab\u0000nul",
    "مجموعة الفواتير",
    "請求書グループ",
    "javascript:alert(1)",
    "__proto__",
    "  spaces   within  ",
    " ",
    "\u3164",
    "bill\u00a0ing",
    "🧾" * 60,
    "é" * 127 + "!",
    "x" * 10_000,
    "{{constructor.constructor('alert(1)')()}}",
)


def hostile() -> FakeApi:
    """Return groups whose names, members, hosts, topics and reasons mean harm."""
    rng = random.Random(5)
    api = FakeApi()
    for name in HOSTILE:
        samples = curve(rng, "steady", 100)
        api.groups[name] = group(name, samples, seconds=1.0, lag=10**15)
        bad = member(name, name, 1, 1, 100, instance_id=name, id=name)
        owned = {
            "topic": name,
            "partition": 0,
            "owner": name,
            "committed": 2**63 - 1,
            "end": None,
            "lag": None,
            "lag_seconds": None,
            "committed_at": None,
            "end_reported_at": None,
            "metadata": name,
            "samples": [None] * 59 + [3],
        }
        unasked = rebalance(
            1,
            "02 02:00:00",
            "member left",
            f"left: {name}",
            bad,
            (10, 10),
            (late(bad, "join", 5_000, removed=True),),
        )
        unknown = rebalance(2, "02 02:01:00", name, name, bad, (10, 10))
        detail = bare()
        detail["alone"].update(
            members=[bad],
            protocol=name,
            topics=[topic_of_group(name, 1, unknown_partitions=1, lag=None, lag_seconds=None)],
        )
        detail.update(partitions=[owned], rebalances=[unknown, unasked])
        api.details[name] = detail
    return api


def node() -> Json:
    """Return the node's own numbers."""
    rng = random.Random(11)
    parts = ("loading", "disk", "storage", "compaction", "stopping")
    checks = [{"part": part, "ok": True, "reason": None, "since": None} for part in parts]
    failed = "the segment 17 could not be written: no space left on device"
    checks[3].update(ok=False, reason=failed, since="2026-03-02T02:51:00Z")
    return {
        "node_id": 1,
        "cluster_id": "R6C_erC4cJM10erf_hJ7KQ",
        "leader_epoch": 3,
        "version": "0.14.0",
        "started_at": "2026-02-26T06:00:00Z",
        "status": "unhealthy",
        "checks": checks,
        "log": {
            "bytes": 412_680_000,
            "live_bytes": 308_100_000,
            "segments": 7,
            "dirty_ratio": 0.25,
            "unflushed_bytes": 18_400,
        },
        "flushes": {
            "per_second": 812.0,
            "p50_ms": 0.4,
            "p99_ms": 2.1,
            "fsync_p99_ms": 1.9,
            "samples": [
                {
                    "at": text_of(NIGHT - timedelta(minutes=MINUTES - n)),
                    "count": 48_700,
                    "p99_ms": round(1.6 + rng.random() + (4 if n == 41 else 0), 1),
                }
                for n in range(MINUTES)
            ],
        },
        "compaction": {
            "running": False,
            "done": 41,
            "failed": 1,
            "last_ms": 3_100,
            "removed_bytes": 99_000_000,
        },
        "load": {"done": 1.0, "entries": 2_410_000, "ms": 5_200},
        "disk": {
            "free_bytes": 80_000_000_000,
            "size_bytes": 250_000_000_000,
            "reserve_bytes": 12_500_000_000,
        },
        "requests": [
            {"api": api, "per_second": rate, "p50_ms": p50, "p99_ms": p99, "errors_per_second": bad}
            for api, rate, p50, p99, bad in (
                ("OffsetCommit", 3_804.0, 0.6, 2.5, 0.0),
                ("Heartbeat", 641.2, 0.1, 0.5, 0.3),
                ("OffsetFetch", 12.4, 0.2, 1.0, 0.0),
                ("JoinGroup", 0.2, 612.0, 12_950.0, 0.0),
                ("SyncGroup", 0.2, 38.0, 60.0, 0.1),
            )
        ],
        "connections": 6_112,
        "groups": {"Stable": 1_974, "Empty": 20, "PreparingRebalance": 6},
        "loop_stall_p99_ms": 1.0,
        "metrics": {"max_series": 50_000, "left_out": 1_204},
        "others": [],
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: FakeApi

    def do_GET(self) -> None:
        """Answer as the daemon does."""
        api, url = self.api, urlsplit(self.path)
        files = page.page_files()
        if url.path in files:
            answer = page.answer_for(url.path, files[url.path])
            self._send(200, b"".join(answer.body), answer.content_type)
        elif api.problem is not None:
            self._problem(*api.problem)
        elif url.path == "/api/v1/events":
            self._stream(parse_qs(url.query).get("group", [None])[0])
        else:
            api.flowing.wait(30)
            found = api.answer(url.path, parse_qs(url.query))
            if found is None:
                self._problem(404, f"there is no {unquote(self.path)}")
            else:
                self._send(200, json.dumps(found).encode())

    def _problem(self, status: int, detail: str) -> None:
        told = {"type": "about:blank", "title": "", "status": status, "detail": detail}
        self._send(status, json.dumps(told).encode(), "application/problem+json")

    def _send(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in SECURITY_HEADERS.items():
            self.send_header(name, value)
        self.send_header("Cache-Control", "no-cache")
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, group_id: str | None) -> None:
        self.api.flowing.wait(30)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        waiting: queue.Queue[bytes | None] = queue.Queue()
        hello = {
            "as_of": text_of(self.api.now()),
            "version": "0.14.0",
            "groups_as_of": text_of(self.api.missed_at),
        }
        waiting.put(f"retry: 200\n\nevent: hello\ndata: {json.dumps(hello)}\n\n".encode())
        mine = (group_id, waiting)
        self.api.streams.append(mine)
        try:
            while (frame := waiting.get()) is not None:
                self.wfile.write(frame)
                self.wfile.flush()
        except OSError:
            pass
        finally:
            self.api.streams.remove(mine)
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(api: FakeApi) -> Iterator[str]:
    """Serve *api*; give the page's address."""
    handler = type("Handler", (_Handler,), {"api": api})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        api.cut()
        server.shutdown()
        server.server_close()
        thread.join()
