"""What would falsify a result without being seen: arithmetic, judging, and the look at answers."""

import json
import os
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from bench.dialect_kafka import commit_errors, commit_request
from bench.dialects import (
    ALL_TOPICS,
    COMMIT,
    FETCH,
    FIRST_OFFSET,
    KINDS,
    TOPICS,
    CoordinatorDialect,
    EchoDialect,
    Load,
    stored_offsets,
    topics_of,
)
from bench.fill import FillPlan, fill, group_name, is_there, offsets_of
from bench.groups import SIZES, growth, rebalance_row
from bench.interpreter import Python, build, prefer, quickest
from bench.load import is_flat
from bench.measures import Aim, Medians, due_count, intended_ns, judge, percentile
from bench.peer_jars import ALL_ROOTS, LOCK, Jar, parse_lock, wrong_jars
from bench.processes import ProcessError
from bench.report import failures
from bench.rows import ROWS, TITLES, uniform_row
from bench.spark import JOIN, KILL, LEAVE, PARTITIONS, SESSION_TIMEOUT_MS, Batch, pauses
from bench.talk import AnswerReader, Talk, connect, response_in
from protocol.connection import ClientConnection
from protocol.messages import GroupFetch, OffsetFetchRequest, TopicPartitions
from tests.integration.daemon import daemon

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize(
    ("rates", "flat"),
    [
        ([], False),
        ([100.0, 100.0], False),
        ([50.0, 100.0, 101.0], False),
        ([50.0, 100.0, 104.0, 101.0], True),
        ([100.0, 94.0, 100.0], False),
        ([0.0, 0.0, 0.0], False),
    ],
)
def test_a_rate_is_flat_when_the_last_three_windows_are_alike(
    rates: list[float], flat: bool
) -> None:
    """What came before them is the warm-up, and two may be alike by chance."""
    assert is_flat(rates) is flat


def test_every_other_kind_of_load_has_a_uniform_one_to_compare_with() -> None:
    """Its cost alone says nothing."""
    for row in ROWS:
        uniform = uniform_row(row)
        assert (uniform is None) == (row.kind == "uniform"), row.name
        if uniform is not None:
            assert uniform.target is row.target
            assert uniform.partitions == row.partitions


# --- which Python ---------------------------------------------------------------------------------


def test_how_this_python_was_built_is_told_without_paths() -> None:
    """Results are published."""
    assert os.sep not in build()
    assert "PGO" in build()
    assert "LTO" in build()


def test_the_python_that_is_asked_for_runs_the_benchmark_with_this_checkout(tmp_path: Path) -> None:
    """Also one that has no packages of its own, such as the system's."""
    other = tmp_path / "python"
    slow = json.dumps(Python(sysconfig.get_config_var("EXT_SUFFIX"), "slow", 1000.0)._asdict())
    asked = f"[ $2 = bench.interpreter ] && echo '{slow}' && exit"
    started = f'echo "other Python: $*" >&2; exec {sys.executable} "$@"'
    other.write_text(f"#!/bin/sh\n{asked}\n{started}\n")
    other.chmod(0o755)
    code = "import sys, pathlib; from bench.interpreter import prefer; "
    code += "prefer('bench.floors', pathlib.Path(sys.argv[2]))"

    done = subprocess.run(
        [sys.executable, "-c", code, "none of the floors", other],
        capture_output=True,
        check=False,
        cwd=ROOT,
        text=True,
    )

    assert f"other Python: -m bench.floors none of the floors {other}\n" in done.stderr
    assert "python -m bench.floors disk" in done.stderr  # How to use it.
    assert done.returncode == 2


@pytest.mark.parametrize(("seconds", "chosen"), [(1.0, "this"), (0.97, "this"), (0.8, "other")])
def test_another_python_is_preferred_where_it_is_clearly_quicker(
    seconds: float, chosen: str
) -> None:
    """Chance decides between equal ones, and a run should be like the one before."""
    this, other = Path("this"), Path("other")

    pythons = {this: Python("", "", 1.0), other: Python("", "", seconds)}

    assert quickest(pythons, this) == Path(chosen)


def test_a_python_that_can_not_run_the_daemon_is_refused(tmp_path: Path) -> None:
    """Else the run would go on under another one than was asked for."""
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)

    with pytest.raises(ProcessError, match="can't run this checkout"):
        prefer("bench.floors", other)


def test_what_was_started_goes_on_where_it_is_what_was_asked_for() -> None:
    """And says so."""
    about = prefer("bench.floors", Path(sys.executable))

    assert about["Python"] == build()
    assert about["calibration"]


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

    assert failures(found, TITLES) == ["commit, 64 connections: 3 wrong"]


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
def talk(port: int) -> Iterator[Talk]:
    """A connection to a daemon."""
    with closing(connect("127.0.0.1", port)) as connected:
        yield connected


@pytest.mark.integration
@pytest.mark.parametrize("workload", [COMMIT, FETCH])
def test_the_echo_gets_the_same_frames_as_the_daemon(workload: str, talk: Talk) -> None:
    """A ceiling for smaller frames would be no ceiling."""
    load = Load(workload, window=2, partitions=100, run=f"same-{workload}")
    real = CoordinatorDialect(load).prepare(talk, 1)
    echo = EchoDialect(load).prepare(talk, 1)

    assert [e.request for e in real] == [e.request for e in echo]


@pytest.mark.integration
def test_commits_that_were_not_kept_are_found_afterwards(talk: Talk) -> None:
    """An acknowledgement without the commit is no throughput."""
    dialect = CoordinatorDialect(Load(COMMIT, window=3, partitions=2, run="kept"))
    exchanges = dialect.prepare(talk, 0)

    assert dialect.differences(talk, 0, exchanges) == 0
    exchanges[1].next_request()  # As if it had been sent and acknowledged.
    assert exchanges[1].offset == FIRST_OFFSET + 1
    assert dialect.differences(talk, 0, exchanges) == 1


@pytest.mark.integration
@pytest.mark.parametrize("workload", [COMMIT, FETCH])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_request_is_answered_rightly_again_and_again(
    kind: str, workload: str, talk: Talk
) -> None:
    """A frame is patched under load, and its answers are compared with the first one."""
    load = Load(workload, window=2, partitions=20, run=f"{kind}-{workload}", kind=kind)
    dialect = CoordinatorDialect(load)
    exchanges = dialect.prepare(talk, 0)
    reader = dialect.reader(exchanges)

    for _ in range(3):
        for answer in talk.ask([bytes(exchange.next_request()) for exchange in exchanges]):
            reader.feed(answer)

    assert reader.wrong == 0, reader.wrong_example
    assert dialect.differences(talk, 0, exchanges) == 0


def test_kinds_of_requests_are_what_they_are_called() -> None:
    """A mixed load that is uniform after all would compare two like things."""
    (mixed,) = topics_of(Load(COMMIT, 1, 100, "", "mixed"))
    assert [p for p, _ in mixed[1]][::99] == [0, 999]
    assert {len(hex(offset)) for _, offset in mixed[1]} > {3, 4, 6, 8, 11}
    topics = topics_of(Load(COMMIT, 1, 100, "", TOPICS))
    assert [topic for topic, _ in topics] == list(ALL_TOPICS)
    assert sum(len(partitions) for _, partitions in topics) == 100


@pytest.mark.integration
def test_every_partition_is_filled_by_commits_of_one(port: int, talk: Talk) -> None:
    """What isn't stored loads in no time."""
    plan = FillPlan("127.0.0.1", port, "coordinator", 7, 5, per_commit=1, connections=3, window=2)

    assert fill(plan)["commits"] == 35

    assert is_there(plan)
    groups = tuple(
        GroupFetch(group_name(n), (TopicPartitions(ALL_TOPICS[0], tuple(range(5))),))
        for n in range(7)
    )
    for group in groups:
        request = OffsetFetchRequest((group,), False)
        (answer,) = talk.ask([ClientConnection().send(request)[1]])
        assert stored_offsets(response_in(answer, to=request)) == offsets_of(5, 1)


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


def test_the_first_offset_of_a_commit_to_kafka_is_where_it_is_said_to_be() -> None:
    """There the next one is written; elsewhere it would damage the request."""
    topics = topics_of(Load(COMMIT, 1, 8, "", TOPICS))

    frame, at = commit_request("group", topics, 7, "noted")

    assert struct.unpack_from(">iq", frame, at - 4) == (0, FIRST_OFFSET)
    assert frame.count(b"noted") == 8
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


def test_errors_of_kafka_are_found_in_every_topic() -> None:
    """A refused commit must not count as one."""
    frame = bytes(8) + struct.pack(">ii", 0, 2)
    for name, errors in ((b"a", (0, 3)), (b"longer", (25,))):
        frame += struct.pack(">h", len(name)) + name + struct.pack(">i", len(errors))
        frame += b"".join(struct.pack(">ih", n, error) for n, error in enumerate(errors))

    assert commit_errors(frame) == [0, 3, 25]


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
