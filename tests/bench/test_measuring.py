"""What would falsify a result without being seen: arithmetic, judging, and the look at answers."""

import socket
import struct
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from bench.dialects import (
    COMMIT,
    FETCH,
    FIRST_OFFSET,
    AnswerReader,
    CoordinatorDialect,
    EchoDialect,
    Load,
)
from bench.groups import SIZES, growth, rebalance_row
from bench.measures import Aim, Medians, due_count, intended_ns, judge, percentile
from bench.peer_jars import ALL_ROOTS, LOCK, Jar, parse_lock, wrong_jars
from bench.processes import ProcessError
from bench.rows import failures
from bench.spark import JOIN, KILL, LEAVE, PARTITIONS, SESSION_TIMEOUT_MS, Batch, pauses
from tests.integration.daemon import daemon

BODIES = [b"zero", b"", b"second answer", b"\x00" * 300]


# --- arithmetic ---------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**12), min_size=1), st.floats(0.001, 1.0))
def test_no_more_than_the_share_lies_below_a_percentile(values: list[int], share: float) -> None:
    """The definition itself, whatever the numbers are."""
    ordered = sorted(values)
    value = percentile(ordered, share)
    assert sum(other < value for other in ordered) < share * len(ordered)
    assert sum(other <= value for other in ordered) >= share * len(ordered) - 1e-6


@given(
    st.integers(0, 10**15),
    st.floats(0.5, 1e6, allow_nan=False),
    st.integers(0, 10**11),
)
def test_due_requests_are_exactly_those_with_an_intended_time_not_after_now(
    start_ns: int, rate_per_s: float, elapsed_ns: int
) -> None:
    """All that was meant to leave counts; rounding sends none early and loses none."""
    count = due_count(start_ns, rate_per_s, start_ns + elapsed_ns)
    assert intended_ns(start_ns, rate_per_s, count - 1) <= start_ns + elapsed_ns
    assert intended_ns(start_ns, rate_per_s, count) > start_ns + elapsed_ns


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_the_growth_is_the_exponent_of_a_power_law(exponent: float) -> None:
    """Twice the members, twice the work: 1."""
    found = {
        rebalance_row(size): [{"members": float(size), "cpu_s": 3e-5 * size**exponent}]
        for size in SIZES
    }

    assert growth(Medians(found), "cpu_s") == pytest.approx(exponent)


# --- judging ------------------------------------------------------------------------------------


def test_an_aim_is_judged_by_medians_and_shown_with_its_spread() -> None:
    """One lucky repetition decides nothing; each is held against its own weather."""
    aim = Aim("a", "a", lambda medians: medians.ratio("ours", "theirs"), 2.0, True, "")
    ours = [{"rate_per_s": rate} for rate in (2000.0, 3000.0, 100.0)]
    theirs = [{"rate_per_s": rate} for rate in (1000.0, 1000.0, 50.0)]

    (judged,) = judge(Medians({"ours": ours, "theirs": theirs}), [aim])

    assert (judged.value, judged.spread, judged.reached) == (2.0, (2.0, 3.0), True)


def test_what_was_not_measured_is_neither_reached_nor_missed() -> None:
    """A machine without a peer, or without /proc, still tells the rest."""
    aim = Aim("a", "a", lambda medians: medians.of("idle_memory", "resident_mb"), 1, False, "MB")

    for samples in ({}, {"idle_memory": [{"resident_mb": None}]}):
        assert [one.reached for one in judge(Medians(samples), [aim])] == [None]


def test_a_run_with_wrong_answers_says_so() -> None:
    """Fast and wrong is not a result."""
    found = {"commit_64": [{"wrong": 1, "differences": 0}, {"wrong": 2, "differences": 0}]}

    assert failures(found) == ["commit, 64 connections: 3 wrong"]


# --- the look at answers ------------------------------------------------------------------------


def answer(slot: int, body: bytes) -> bytes:
    """Return a frame as the daemon sends it: size, correlation id, throttle, epoch, body."""
    return struct.pack(">Iiii", 12 + len(body), slot, 0, 7) + body


def reader() -> AnswerReader:
    """Return a reader that expects `BODIES` by slot."""
    return AnswerReader(slot_at=4, answer_from=16, answers=BODIES)


def test_every_split_of_the_stream_gives_the_same_slots() -> None:
    """Each request is answered once, wherever TCP cuts: the count is the result."""
    stream = b"".join(answer(slot, BODIES[slot]) for slot in (2, 0, 1, 3, 0))
    for cut in range(len(stream) + 1):
        under_test = reader()
        slots = under_test.feed(stream[:cut]) + under_test.feed(stream[cut:])
        assert slots == [2, 0, 1, 3, 0]
        assert under_test.wrong == 0


def test_a_different_answer_counts_as_wrong_and_one_to_nothing_is_refused() -> None:
    """A server that answers errors quickly must not win."""
    under_test = reader()
    assert under_test.feed(answer(0, b"zero") + answer(0, b"oops") + answer(2, b"")) == [0, 0, 2]
    assert under_test.wrong == 2
    with pytest.raises(ValueError, match="not sent"):
        under_test.feed(answer(len(BODIES), b""))


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A daemon's port."""
    with daemon(tmp_path_factory.mktemp("data")) as running:
        yield running.ready().port


@pytest.fixture
def sock(port: int) -> Iterator[socket.socket]:
    """A connection to a daemon."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connected:
        yield connected


@pytest.mark.integration
@pytest.mark.parametrize("workload", [COMMIT, FETCH])
def test_the_echo_gets_the_same_frames_as_the_daemon(workload: str, sock: socket.socket) -> None:
    """A ceiling for smaller frames would be no ceiling."""
    load = Load(workload, window=2, partitions=100, run=f"same-{workload}")
    real = CoordinatorDialect(load).prepare(sock, 1)
    echo = EchoDialect(load).prepare(sock, 1)

    assert [e.request for e in real] == [e.request for e in echo]


@pytest.mark.integration
def test_commits_that_were_not_kept_are_found_afterwards(sock: socket.socket) -> None:
    """An acknowledgement without the commit is no throughput."""
    dialect = CoordinatorDialect(Load(COMMIT, window=3, partitions=2, run="kept"))
    exchanges = dialect.prepare(sock, 0)

    assert dialect.differences(sock, 0, exchanges) == 0
    exchanges[1].next_request()  # As if it had been sent and acknowledged.
    assert exchanges[1].offset == FIRST_OFFSET + 1
    assert dialect.differences(sock, 0, exchanges) == 1


# --- peers --------------------------------------------------------------------------------------


def test_the_lock_file_holds_every_root_and_a_hash_for_each_jar() -> None:
    """A root that isn't locked would be missing at every start."""
    jars = parse_lock(LOCK.read_text(encoding="utf-8"))
    for program, roots in ALL_ROOTS.items():
        assert set(roots) <= {jar.coordinates for jar in jars if jar.program == program}
    assert {len(jar.sha256) for jar in jars} == {64}


def test_a_jar_that_is_missing_or_another_one_is_named(tmp_path: Path) -> None:
    """Whatever brought it: what runs is what was locked."""
    jars = [Jar("kafka", "org.b:b:2.0", sha256(b"b").hexdigest()), Jar("kafka", "a:a:1", "00")]
    (tmp_path / "kafka").mkdir()
    assert wrong_jars(jars, tmp_path) == ["b-2.0.jar", "a-1.jar"]
    for jar in jars:
        (tmp_path / "kafka" / jar.file_name).write_bytes(b"b")
    assert wrong_jars(jars, tmp_path) == ["a-1.jar"]


# --- pauses in Spark ----------------------------------------------------------------------------


def made(*taken: tuple[float, str, Sequence[int]]) -> list[Batch]:
    """Return batches."""
    return [Batch(at_s, driver, frozenset(partitions)) for at_s, driver, partitions in taken]


ALL, LOW, HIGH = range(PARTITIONS), range(3), range(3, PARTITIONS)
SHARES = (("a", LOW), ("b", HIGH))


def test_a_pause_is_the_longest_time_between_two_batches_around_the_event() -> None:
    """Of the partitions that moved, and of those that stayed, apart."""
    batches = made(
        (1.0, "a", ALL),
        (1.5, "a", ALL),
        (2.0, "a", ALL),  # The event: 2.1.
        (2.5, "a", LOW),
        (3.3, "a", LOW),
        (4.0, "b", HIGH),
        (4.1, "a", LOW),
        (4.5, "b", HIGH),
    )

    assert pauses(batches, JOIN, 2.1) == pytest.approx(
        {"moved_s": 2.0, "stayed_s": 0.8, "batch_s": 0.5, "limit_s": 0.5, "over_s": 1.5}
    )


def test_a_kill_can_not_be_noticed_before_the_session_is_over() -> None:
    """So that much is no fault of the hand-over."""
    batches = made(
        *((at_s, driver, share) for at_s in (1.0, 1.5) for driver, share in SHARES),
        (2.0, "a", LOW),
        (6.5, "a", ALL),
    )

    measured = pauses(batches, KILL, 1.6)

    assert measured["limit_s"] == 0.5 + SESSION_TIMEOUT_MS / 1000
    assert measured["over_s"] == 6.5 - 1.5 - 3.5


def test_events_that_moved_nothing_or_lost_a_partition_are_no_measurement() -> None:
    """A number made from nothing would look very good."""
    quiet = made(*((at_s, "a", ALL) for at_s in (1.0, 1.5, 2.0)))

    with pytest.raises(ProcessError, match="no partition moved"):
        pauses(quiet, LEAVE, 1.6)
    with pytest.raises(ProcessError, match="partition 3 made no progress"):
        pauses([*quiet[:2], *made((2.0, "b", LOW))], LEAVE, 1.6)
